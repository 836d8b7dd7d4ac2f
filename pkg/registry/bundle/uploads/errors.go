// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package uploads

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/upload"
	"rukpak.io/apiserver/pkg/etcd"
	subresource "rukpak.io/apiserver/pkg/registry/bundle/content"
)

// Reasons of causes in a Status, for programs. The first three are the problem types of the draft.
const (
	// CauseMismatchingOffset means that the body does not begin where the upload ends; Upload-Offset says where that is.
	CauseMismatchingOffset metav1.CauseType = "MismatchingUploadOffset"
	// CauseCompleted means that the upload takes no more bytes.
	CauseCompleted metav1.CauseType = "CompletedUpload"
	// CauseInconsistentLength means that the bytes are more or fewer than was said before.
	CauseInconsistentLength metav1.CauseType = "InconsistentUploadLength"
	// CauseUploadNotFound means that there is no such upload of this caller, or none any more.
	CauseUploadNotFound metav1.CauseType = "UploadNotFound"
	// CauseDigestMismatch means that the body was damaged on the way: the same request may succeed.
	CauseDigestMismatch metav1.CauseType = "DigestMismatch"
	// CauseTooManyUploads means that some have to end first.
	CauseTooManyUploads metav1.CauseType = "TooManyUploads"
	// CauseUploadLost means that stored parts are gone or damaged: the upload has to begin anew.
	CauseUploadLost metav1.CauseType = "UploadLost"
	// CauseCommitting means that all bytes are there and are still being worked on: ask again.
	CauseCommitting metav1.CauseType = "Committing"
	// CauseFieldTooLong means that a header field, which the cause names, is longer than what is kept with an upload.
	CauseFieldTooLong metav1.CauseType = "FieldTooLong"
)

// Seconds after which to try again.
const (
	busyRetrySeconds    = 2
	crowdedRetrySeconds = 60
	commitRetrySeconds  = 1
)

func (c *call) status(code int32, reason metav1.StatusReason, cause metav1.CauseType, format string, args ...any) *apierrors.StatusError {
	return statusOf(c.namespace, c.name, code, reason, cause, fmt.Sprintf(format, args...))
}

func statusOf(namespace, name string, code int32, reason metav1.StatusReason, cause metav1.CauseType, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason,
		Message: fmt.Sprintf("upload to bundle %q in namespace %q: %s", name, namespace, message),
		Details: &metav1.StatusDetails{
			Group: rukpak.GroupName, Kind: "bundles", Name: name,
			Causes: []metav1.StatusCause{{Type: cause, Message: message}},
		},
	}}
}

func badRequest(format string, args ...any) error {
	return apierrors.NewBadRequest(fmt.Sprintf(format, args...))
}

func notAllowed(c *call) error {
	c.w.Header().Set("Allow", strings.Join(Methods(c.id != ""), ", "))
	return apierrors.NewMethodNotSupported(rukpak.Resource("bundles/uploads"), c.req.Method)
}

func notFound(c *call) error {
	return c.status(http.StatusNotFound, metav1.StatusReasonNotFound, CauseUploadNotFound, "there is no upload %.40q, or none any more", c.id)
}

func mismatch(c *call, offset, now int64) error {
	return c.status(http.StatusConflict, metav1.StatusReasonConflict, CauseMismatchingOffset,
		"the request begins at byte %d, and the upload has %d bytes", offset, now)
}

func tooLarge(c *call, limit int64) error {
	return c.status(http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, subresource.CauseLimitExceeded,
		"it has more than the %d bytes that the bundle's class allows", limit)
}

func inconsistent(c *call, format string, args ...any) error {
	return c.status(http.StatusBadRequest, metav1.StatusReasonBadRequest, CauseInconsistentLength, format, args...)
}

func retryLater(err *apierrors.StatusError, seconds int32) error {
	err.ErrStatus.Details.RetryAfterSeconds = seconds
	return err
}

// unavailable says that the server cannot do now what it could do later. An etcd that is full does not mend itself.
func unavailable(c *call, doing string, err error) error {
	if etcd.NoSpace(err) {
		return c.status(http.StatusInsufficientStorage, "InsufficientStorage", subresource.CauseEtcdNoSpace, "cannot %s: %s", doing, etcd.NoSpaceMessage)
	}
	return retryLater(c.status(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "", "cannot %s: %s", doing, subresource.Say(doing, err)), commitRetrySeconds)
}

// tooManyParts says that a part waited in vain for others to end.
func tooManyParts() error {
	return apierrors.NewTooManyRequests("as many parts of uploads as the server takes at the same time are under way", busyRetrySeconds)
}

// storeFailed turns an error of the store into one that says whose it is.
func storeFailed(c *call, err error) error {
	if errors.Is(err, content.ErrBusy) {
		return apierrors.NewTooManyRequests(subresource.Say("store the bytes", err), busyRetrySeconds)
	}
	if errors.Is(err, content.ErrNoSpace) && !etcd.NoSpace(err) {
		return c.status(http.StatusInsufficientStorage, "InsufficientStorage", subresource.CauseStorageFull, "%s", subresource.Say("store the bytes", err))
	}
	return unavailable(c, "store the bytes", err)
}

// sessionFailed turns an error of the sessions into an answer.
func sessionFailed(c *call, err error) error {
	switch {
	case errors.Is(err, upload.ErrNotFound), errors.Is(err, upload.ErrInvalidID):
		return notFound(c)
	case errors.Is(err, upload.ErrChanged):
		return c.status(http.StatusConflict, metav1.StatusReasonConflict, CauseMismatchingOffset, "another request has changed it meanwhile: ask where it is")
	}
	return unavailable(c, "reach the record of the upload", err)
}

// final reports whether an error of the commit of all bytes will be the same each time.
func final(err error) bool {
	var s apierrors.APIStatus
	if !errors.As(err, &s) {
		return false
	}
	status := s.Status()
	switch status.Code {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusPreconditionFailed, http.StatusRequestEntityTooLarge,
		http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return true
	case http.StatusConflict:
		return hasCause(status, subresource.CauseAttemptEnded) || hasCause(status, CauseUploadLost)
	}
	return false
}

func hasCause(status metav1.Status, cause metav1.CauseType) bool {
	if status.Details == nil {
		return false
	}
	for _, c := range status.Details.Causes {
		if c.Type == cause {
			return true
		}
	}
	return false
}
