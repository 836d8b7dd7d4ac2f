// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/tools/clientcmd"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/cmd/bundle/download"
	"rukpak.io/apiserver/pkg/cmd/bundle/place"
	"rukpak.io/apiserver/pkg/diskfull"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/tarball"
)

// Exit codes. They are part of what users rely on: docs/kubectl-bundle.md.
const (
	// ExitOK means that all was done, or that the answer is yes.
	ExitOK = 0
	// ExitNo means that the answer is no: diff found differences, wait a failing bundle, doctor something that is wrong.
	ExitNo = 1
	// ExitUsage means that the command was not understood, or that a field of the object may not be what it is.
	ExitUsage = 2
	// ExitFailed is any failure that has no code of its own.
	ExitFailed = 3
	// ExitNotFound means that there is no such bundle, class, content, file or pod.
	ExitNotFound = 4
	// ExitNotAllowed means that the credentials are not good enough.
	ExitNotAllowed = 5
	// ExitNoContent means that the bundle has no content, or that it does not take one now.
	ExitNoContent = 6
	// ExitWrongContent means that content is not what its digest says, or may not be what it is.
	ExitWrongContent = 7
	// ExitUnavailable means that the server cannot be reached, does not serve bundles, or not in time.
	ExitUnavailable = 8
	// ExitLocal means that a file or folder of this machine cannot be read or written.
	ExitLocal = 9
	// ExitInterrupted means that somebody pressed Ctrl-C.
	ExitInterrupted = 130
)

// problem is an error with what to do about it.
type problem struct {
	code int
	err  error
	hint string
}

func (p *problem) Error() string { return p.err.Error() }
func (p *problem) Unwrap() error { return p.err }

// fail makes an error with an exit code and a hint, which may be empty.
func fail(code int, err error, hint string, args ...any) error {
	return &problem{code: code, err: err, hint: fmt.Sprintf(hint, args...)}
}

// errNo is the answer no, which was said already.
var errNo = errors.New("no")

func usage(format string, args ...any) error {
	return fail(ExitUsage, fmt.Errorf(format, args...), "")
}

// explain decides on the exit code of an error and on what to say about it.
func (s *session) explain(ctx context.Context, err error) *problem {
	// Where the user's files are is said in any case.
	if _, kept := errors.AsType[*place.KeptError](err); ctx.Err() != nil && !kept {
		p, ok := errors.AsType[*problem](err)
		if !ok || p.code != ExitInterrupted {
			p = &problem{code: ExitInterrupted, err: errors.New("interrupted")}
		}
		return p
	}
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	if p := s.explainStatus(err); p != nil {
		return p
	}
	return s.explainLocal(err)
}

// explainStatus explains an answer of the API. It returns nil for other errors.
func (s *session) explainStatus(err error) *problem {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return nil
	}
	n := s.where("")
	p := &problem{code: ExitFailed, err: err}
	switch code := status.Status().Code; {
	case code == http.StatusUnauthorized:
		p.code, p.hint = ExitNotAllowed, "the credentials of the kubeconfig are not known here, or have expired: log in again"
	case code == http.StatusForbidden:
		p.code, p.hint = ExitNotAllowed, "ask an administrator for that verb: docs/kubectl-bundle.md lists what each command needs, and \"kubectl bundle doctor"+n+"\" what you may do"
	case code == http.StatusNotFound && isUnknownResource(err):
		p.code, p.hint = ExitUnavailable, "this cluster serves no bundles: install rukpak-apiserver, or see what is wrong with \"kubectl bundle doctor"+n+"\""
	case apierrors.HasStatusCause(err, v1alpha1.CauseFileNotFound) && s.inside != "":
		p.code, p.hint = ExitNotFound, fmt.Sprintf("\"%s tree %s%s\" shows the files that there are", program, quoted(s.inside), n)
	case code == http.StatusNotFound:
		p.code, p.hint = ExitNotFound, "\"kubectl bundle list"+n+"\" shows what there is; -n chooses another namespace"
		if s.inside != "" {
			p.hint = "\"kubectl bundle list" + n + "\" shows what bundles there are, \"kubectl bundle history NAME" + n + "\" their contents, \"kubectl bundle tree NAME" + n + "\" the files"
		}
	case apierrors.IsAlreadyExists(err):
		p.hint = "choose another name; \"kubectl bundle push\" writes the content of a bundle that is there"
	case code == http.StatusConflict:
		p.code, p.hint = ExitNoContent, "\"kubectl bundle describe NAME"+n+"\" says what it waits for, and what to do"
	case code == http.StatusPreconditionFailed:
		p.code, p.hint = ExitNoContent, "it has other content by now, of another writer or an earlier push: look at it, and then write yours"
	case code == http.StatusRequestEntityTooLarge:
		p.code, p.hint = ExitWrongContent, "the ProvisionerClass bounds what a bundle may be (limits): send less, or have them raised"
	case invalidFields(status.Status()):
		p.code, p.hint = ExitUsage, "correct that"
		if field := status.Status().Details.Causes[0].Field; strings.HasPrefix(field, "spec.") && !strings.Contains(field, "[") {
			p.hint += "; \"kubectl explain bundle." + clean(field) + n + "\" says what it may be"
		}
	case code == http.StatusBadRequest && !s.sends:
		p.code = ExitUsage
	case code == http.StatusUnprocessableEntity, code == http.StatusBadRequest:
		p.code = ExitWrongContent
	case code == http.StatusInsufficientStorage:
		p.code, p.hint = ExitUnavailable, "the content store is full: delete bundles, or have it enlarged"
	case code == http.StatusTooManyRequests, code >= http.StatusInternalServerError:
		p.code, p.hint = ExitUnavailable, "try again in a moment; \"kubectl bundle doctor"+n+"\" says whether the server is well"
	}
	return p
}

// invalidFields reports whether an object was refused for its fields, and not content for what it is.
func invalidFields(status metav1.Status) bool {
	if status.Code != http.StatusUnprocessableEntity || status.Details == nil || len(status.Details.Causes) == 0 {
		return false
	}
	for _, cause := range status.Details.Causes {
		if !strings.HasPrefix(string(cause.Type), "FieldValue") {
			return false
		}
	}
	return true
}

// isUnknownResource tells an API that is not there from an object that is not.
func isUnknownResource(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return meta.IsNoMatchError(err)
	}
	d := status.Status().Details
	message := status.Status().Message
	return d == nil || d.Name == "" || strings.Contains(message, "could not find the requested resource") || strings.Contains(message, "404 page not found")
}

// unreached is what to do where there was no answer.
const unreached = "the API server cannot be reached: see whether it runs, and whether --context names the right one"

// explainLocal explains what did not come from the API.
func (s *session) explainLocal(err error) *problem {
	p := &problem{code: ExitFailed, err: err}
	write, writing := errors.AsType[*download.WriteError](err)
	_, isPath := errors.AsType[*fs.PathError](err)
	_, isLink := errors.AsType[*os.LinkError](err)
	entry, isEntry := errors.AsType[*tarball.EntryError](err)
	limit, isLimit := errors.AsType[*tarball.LimitError](err)
	_, isRequest := errors.AsType[*url.Error](err)
	_, isUntrusted := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case diskfull.Is(err):
		p.code, p.hint = ExitLocal, "the disk is full: make room and run the same command again"
		if writing && write.Kept > 0 {
			p.hint += fmt.Sprintf("; it goes on after the %d bytes that are kept", write.Kept)
		}
	case errors.Is(err, download.ErrNoFile):
		p.code, p.hint = ExitLocal, "what has come is kept in a file of that name until it is whole: see who has put something else there, and remove it; or name another destination"
	case errors.Is(err, download.ErrBusy):
		p.code, p.hint = ExitLocal, "wait until that has ended, or name another destination"
	case typed.IsNoCredentials(err):
		p.code, p.hint = ExitNotAllowed, "the command of the kubeconfig that gives credentials has failed: log in again, or see what it says"
	case isUntrusted:
		p.code, p.hint = ExitUnavailable, "what answers has no certificate of the authority that the kubeconfig names for the API server: see whether --context and --kubeconfig name the right one"
	case isRequest:
		p.code, p.hint = ExitUnavailable, unreached
	case errors.Is(err, syscall.EPIPE):
		p.code, p.err = ExitLocal, errors.New("nobody reads the output any more")
	case errors.Is(err, typed.ErrDigestMismatch):
		p.code, p.hint = ExitWrongContent, "what came is damaged and was not kept: try again; if it stays, look for a proxy in between that changes what it passes on"
	case errors.Is(err, tarball.ErrNotTar):
		p.code, p.hint = ExitWrongContent, "unpack it, and name the folder; or make a tar or tar.gz of it"
	case errors.Is(err, tarball.ErrNotCanonical):
		p.code = ExitWrongContent
	case isEntry:
		p.code, p.err = ExitWrongContent, fmt.Errorf("%w", entry)
	case isLimit:
		p.code, p.err = ExitWrongContent, limit
	case errors.Is(err, syscall.EXDEV), errors.Is(err, syscall.EBUSY):
		p.code, p.hint = ExitLocal, "it is in use, or on another file system than what is beside it, and cannot be renamed: name another destination"
	case writing, isPath, isLink:
		p.code = ExitLocal
	case clientcmd.IsEmptyConfig(err):
		p.hint = "name a cluster with --kubeconfig, --context or KUBECONFIG"
	case clientcmd.IsConfigurationInvalid(err):
	case utilnet.IsConnectionRefused(err), utilnet.IsConnectionReset(err), utilnet.IsTimeout(err), utilnet.IsProbableEOF(err), utilnet.IsHTTP2ConnectionLost(err):
		p.code, p.hint = ExitUnavailable, unreached
	case typed.IsNoAnswer(err):
		p.code, p.hint = ExitUnavailable, "the server, or what is in between, broke the answer off: try again"
	}
	return p
}
