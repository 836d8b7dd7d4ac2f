// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/etcd"
	"rukpak.io/apiserver/pkg/provisioner"
	"rukpak.io/apiserver/pkg/tarball"
)

// Reasons of causes in a Status, for programs.
const (
	// CauseNoContent comes with the reason of the condition Unpacked in the message.
	CauseNoContent metav1.CauseType = "NoContent"
	// CauseContentLost means that the stored bytes are gone.
	CauseContentLost metav1.CauseType = "ContentLost"
	// CauseAttemptNotRecorded means that the same request succeeds in a moment.
	CauseAttemptNotRecorded metav1.CauseType = "AttemptNotRecorded"
	// CauseAttemptEnded means that the attempt is not, or no more, the bundle's current one.
	CauseAttemptEnded metav1.CauseType = "AttemptEnded"
	// CauseLimitExceeded means that the content is larger than the class allows.
	CauseLimitExceeded metav1.CauseType = "LimitExceeded"
	// CauseEtcdNoSpace means that etcd is full.
	CauseEtcdNoSpace metav1.CauseType = "EtcdNoSpace"
	// CauseStorageFull means that the content store is full.
	CauseStorageFull metav1.CauseType = "StorageFull"
	// CauseContentQuotaExceeded means that the bundles of the namespace have as much content as they may.
	CauseContentQuotaExceeded metav1.CauseType = "ContentQuotaExceeded"
	// CauseContentRefused means that the content is not what it has to be.
	CauseContentRefused metav1.CauseType = "ContentRefused"
)

// status makes an error about a bundle.
func status(b *rukpak.Bundle, code int32, reason metav1.StatusReason, message string, causes ...metav1.StatusCause) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    code,
		Reason:  reason,
		Message: fmt.Sprintf("bundle %q in namespace %q: %s", b.Name, b.Namespace, message),
		Details: &metav1.StatusDetails{Group: rukpak.GroupName, Kind: "bundles", Name: b.Name, UID: b.UID, Causes: causes},
	}}
}

func badRequest(format string, args ...any) error {
	return apierrors.NewBadRequest(fmt.Sprintf(format, args...))
}

// noContent says why there is nothing to read yet.
func noContent(b *rukpak.Bundle) error {
	message := "there is no content yet"
	causes := []metav1.StatusCause{{Type: CauseNoContent, Message: message, Field: "status.content"}}
	if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionUnpacked); c != nil {
		message += ": " + c.Reason
		if c.Message != "" {
			message += ": " + c.Message
		}
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseType(c.Reason), Message: c.Message, Field: "status.conditions"})
	}
	return status(b, http.StatusConflict, metav1.StatusReasonConflict, message, causes...)
}

func noSuchDigest(b *rukpak.Bundle, digest string) error {
	return status(b, http.StatusNotFound, metav1.StatusReasonNotFound, "content "+digest+" is not, or no more, served")
}

func lost(b *rukpak.Bundle, digest string) error {
	message := "the stored bytes of " + digest + " are gone"
	return status(b, http.StatusConflict, metav1.StatusReasonConflict, message, metav1.StatusCause{Type: CauseContentLost, Message: message})
}

// unavailable says that the server cannot do now what it could do later. An etcd that is full does not mend itself.
func unavailable(doing string, b *rukpak.Bundle, err error) error {
	if etcd.NoSpace(err) {
		return status(b, http.StatusInsufficientStorage, "InsufficientStorage", fmt.Sprintf("cannot %s: %s", doing, etcd.NoSpaceMessage),
			metav1.StatusCause{Type: CauseEtcdNoSpace, Message: err.Error()})
	}
	s := status(b, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, fmt.Sprintf("cannot %s: %s", doing, Say(doing, err)))
	s.ErrStatus.Details.RetryAfterSeconds = 1
	return s
}

// conflict is an error of a write that came at the wrong time.
func conflict(b *rukpak.Bundle, cause metav1.CauseType, message string) error {
	return status(b, http.StatusConflict, metav1.StatusReasonConflict, message, metav1.StatusCause{Type: cause, Message: message})
}

func preconditionFailed(b *rukpak.Bundle, message string) error {
	return status(b, http.StatusPreconditionFailed, "PreconditionFailed", message)
}

// refusedByHTTP is an answer of net/http to the conditions or the range of a request, in the form of the API.
func refusedByHTTP(b *rukpak.Bundle, c *rukpak.ContentStatus, code int) error {
	switch code {
	case http.StatusPreconditionFailed:
		return preconditionFailed(b, "the content is "+c.Digest)
	case http.StatusRequestedRangeNotSatisfiable:
		return status(b, int32(code), "RangeNotSatisfiable", fmt.Sprintf("header Range: there is no such part of the %d bytes of the content", c.Size))
	}
	return status(b, int32(code), metav1.StatusReasonUnknown, http.StatusText(code))
}

// brokenOff says that the body ended before the archive did. Nothing is wrong with the content for all that is
// known, so it is no 400: the same request may succeed (RFC 9110, section 15.5.9).
func brokenOff(b *rukpak.Bundle, body *pacedReader) error {
	return status(b, http.StatusRequestTimeout, "RequestTimeout", fmt.Sprintf("the body ended early, after %d bytes: %v", body.Bytes, WithoutAddresses(body.err)))
}

// refused turns what is wrong with the bytes into an error that names the entry, or says what the limit is.
// It returns nil for an error that is not about the bytes.
func refused(b *rukpak.Bundle, err error) error {
	var (
		limit   *tarball.LimitError
		entry   *tarball.EntryError
		problem *provisioner.ContentError
	)
	switch {
	case errors.As(err, &limit):
		return status(b, http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, err.Error(),
			metav1.StatusCause{Type: CauseLimitExceeded, Message: err.Error(), Field: limit.Limit})
	case errors.As(err, &problem):
		return status(b, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, problem.Error()+"; "+provisioner.Instead,
			metav1.StatusCause{Type: CauseContentRefused, Message: withoutFile(problem), Field: cmp.Or(problem.File, "content")},
			metav1.StatusCause{Type: CauseContentRefused, Message: provisioner.Instead, Field: "spec.provisionerClassName"})
	case errors.As(err, &entry):
		return status(b, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, err.Error(),
			metav1.StatusCause{Type: CauseContentRefused, Message: entry.Reason, Field: cmp.Or(entry.Entry, "content")})
	case errors.Is(err, tarball.ErrNotTar), errors.Is(err, tarball.ErrNotCanonical), errors.Is(err, io.ErrUnexpectedEOF):
		return status(b, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error(),
			metav1.StatusCause{Type: CauseContentRefused, Message: err.Error()})
	}
	return nil
}

// withoutFile is what is wrong with a file, without its name, which stands beside it.
func withoutFile(problem *provisioner.ContentError) string {
	p := *problem
	p.File = ""
	if p.Document == 0 || problem.File == "" {
		return p.Error()
	}
	return fmt.Sprintf("document %d: %s", p.Document, p.Reason)
}

// tooManyWrites says that a write waited in vain for others to end.
func tooManyWrites() error {
	return apierrors.NewTooManyRequests("as many writes of content as the server takes at the same time are under way", busyRetrySeconds)
}

// failed turns an error of the store into one that says whose it is.
func failed(b *rukpak.Bundle, err error) error {
	if quota, ok := errors.AsType[*quotaError](err); ok {
		return quota.status(b)
	}
	if errors.Is(err, content.ErrBusy) {
		return apierrors.NewTooManyRequests(Say("store the content", err), busyRetrySeconds)
	}
	if errors.Is(err, content.ErrNoSpace) && !etcd.NoSpace(err) {
		said := Say("store the content", err)
		return status(b, http.StatusInsufficientStorage, "InsufficientStorage", said, metav1.StatusCause{Type: CauseStorageFull, Message: said})
	}
	return unavailable("store the content", b, err)
}
