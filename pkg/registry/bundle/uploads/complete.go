// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package uploads

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/content/upload"
	"rukpak.io/apiserver/pkg/failpoint"
	"rukpak.io/apiserver/pkg/panics"
	subresource "rukpak.io/apiserver/pkg/registry/bundle/content"
)

const (
	// answerTimeout is how long a client waits for its upload to be committed until it is asked to come again:
	// less than kube-apiserver lets it wait.
	answerTimeout = 45 * time.Second
	// commitLimit bounds the work on all bytes of an upload.
	commitLimit = 30 * time.Minute
)

// completion is an upload whose bytes are all there and become content. It does not depend on any request.
type completion struct {
	done   chan struct{}
	bundle *rukpak.Bundle
	code   int
	err    error
}

// complete answers the request that ends an upload with what a PUT of all its bytes would be answered with.
func (r *REST) complete(c *call, s *upload.Session) error {
	if s.Length != upload.UnknownLength && s.Length != s.Offset() {
		return inconsistent(c, "it ends after %d bytes, and was said to have %d", s.Offset(), s.Length)
	}
	work := r.completion(c, s)
	timer := time.NewTimer(answerTimeout)
	defer timer.Stop()
	select {
	case <-work.done:
	case <-c.ctx.Done():
		return unavailable(c, "wait any longer", context.Cause(c.ctx))
	case <-timer.C:
		return retryLater(c.status(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, CauseCommitting,
			"all %d bytes are there and are being worked on: repeat the request, without a body", s.Offset()), commitRetrySeconds)
	}
	if caught, ok := errors.AsType[*panics.Error](work.err); ok {
		return apierrors.NewInternalError(caught)
	}
	if work.err != nil {
		if final(work.err) {
			c.w.Header().Set(fieldComplete, "?1")
		}
		return work.err
	}
	return c.committed(work.code, work.bundle, work.bundle.Status.Content.Digest)
}

// committed answers with the bundle, as PUT does.
func (c *call) committed(code int, b *rukpak.Bundle, digest string) error {
	c.w.Header().Set(fieldComplete, "?1")
	subresource.SetDigest(c.w.Header(), digest)
	c.responder.Object(code, b)
	return nil
}

// completion returns the work on a session that is under way, or begins it.
func (r *REST) completion(c *call, s *upload.Session) *completion {
	r.mu.Lock()
	defer r.mu.Unlock()
	if work := r.completions[s.ID]; work != nil {
		return work
	}
	mine := *s
	work := &completion{done: make(chan struct{})}
	r.completions[s.ID] = work
	go func() {
		defer func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			delete(r.completions, s.ID)
			close(work.done)
		}()
		// Whether the bytes count does not depend on the client waiting for the answer.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), commitLimit)
		defer cancel()
		work.err = panics.Catch(ctx, "an upload", func() (err error) {
			work.bundle, work.code, err = r.commit(ctx, &mine)
			return err
		})
	}()
	return work
}

// isCommitted reports whether a bundle has the content that a session became. The server that made it so may have ended
// before it could say so in the session; what the session was conditional on is another by now.
func isCommitted(b *rukpak.Bundle, s *upload.Session) bool {
	c := b.Status.Content
	return s.Committing != "" && c != nil && string(b.UID) == s.BundleUID && c.Digest == s.Committing && c.Generation == s.Generation
}

// commit makes the parts the content of the bundle, and ends the session unless the same could succeed later.
func (r *REST) commit(ctx context.Context, s *upload.Session) (*rukpak.Bundle, int, error) {
	b, err := r.Bundles.Get(ctx, s.Bundle)
	if err == nil && isCommitted(b, s) {
		r.end(ctx, s, upload.Outcome{Size: s.Offset(), Digest: s.Committing})
		return b, http.StatusOK, nil
	}
	all := newParts(ctx, r.Stores[s.Store], s.Parts)
	b, code, err := r.Content.Write(ctx, s.Bundle, subresource.Assembled{
		Upload: s.ID, UID: types.UID(s.BundleUID), Generation: s.Generation, Header: headerOf(s), Body: all, Size: s.Offset(),
		Committing: func(ctx context.Context, digest string) error {
			s.Committing = digest
			return r.Sessions.Update(ctx, s)
		},
	})
	if err := all.Close(); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot close a part of an upload", "upload", s.ID)
	}
	failpoint.Hit("upload/after-commit")
	if errors.Is(err, errLost) {
		// An end is for good, and it may be that this is another's store.
		if foreign := r.belongs(ctx, s.Store); foreign != nil {
			err = foreign
		}
	}
	switch {
	case err == nil:
		r.end(ctx, s, upload.Outcome{Size: s.Offset(), Digest: b.Status.Content.Digest})
	case errors.Is(err, errLost):
		err = lostParts(s, err)
		r.end(ctx, s, refusal(s, err))
	case final(err):
		// Another replica may have committed the same meanwhile: what the upload is conditional on has changed by that.
		if now, ok := r.committedElsewhere(ctx, s); ok {
			return now, http.StatusOK, nil
		}
		r.end(ctx, s, refusal(s, err))
	default:
		if status := apierrors.APIStatus(nil); !errors.As(err, &status) {
			err = retryLater(statusOf(s.Namespace, s.Bundle, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "",
				"cannot complete the upload: "+subresource.Say("complete an upload", err)), commitRetrySeconds)
		}
	}
	return b, code, err
}

// committedElsewhere looks whether the bundle has the content of a session by now, and ends the session then.
func (r *REST) committedElsewhere(ctx context.Context, s *upload.Session) (*rukpak.Bundle, bool) {
	fresh, err := r.Sessions.Get(ctx, s.Key)
	if err != nil {
		return nil, false
	}
	b, err := r.Bundles.Get(ctx, s.Bundle)
	switch {
	case err != nil || b.Status.Content == nil || string(b.UID) != s.BundleUID:
		return nil, false
	case fresh.Outcome != nil:
		return b, fresh.Outcome.Digest != "" && fresh.Outcome.Digest == b.Status.Content.Digest
	case !isCommitted(b, fresh):
		return nil, false
	}
	r.end(ctx, fresh, upload.Outcome{Size: fresh.Offset(), Digest: fresh.Committing})
	return b, true
}

func lostParts(s *upload.Session, err error) error {
	return statusOf(s.Namespace, s.Bundle, http.StatusConflict, metav1.StatusReasonConflict, CauseUploadLost, subresource.Say("read the parts of an upload", err)+": begin a new upload")
}

// lost ends a session whose stored bytes cannot be read, unless it may be that this is another's store.
func (r *REST) lost(c *call, s *upload.Session, cause error) error {
	if err := r.belongs(c.ctx, s.Store); err != nil {
		return unavailable(c, "read the parts", err)
	}
	err := lostParts(s, cause)
	c.w.Header().Set(fieldComplete, "?1")
	r.end(c.ctx, s, refusal(s, err))
	return err
}

// repeat answers a request to an upload that has ended: the one that ended it, come again because its answer was
// lost, gets that answer.
func (r *REST) repeat(c *call, b *rukpak.Bundle, s *upload.Session, f fields) error {
	ended := f.complete && c.req.ContentLength >= 0 && f.offset+c.req.ContentLength == s.Outcome.Size
	// One that was refused for its head had a body that does not count.
	if refused := s.Outcome.Digest == "" && f.offset == s.Outcome.Size; !ended && !refused {
		return c.status(http.StatusBadRequest, metav1.StatusReasonBadRequest, CauseCompleted, "it is complete, with %d bytes", s.Outcome.Size)
	}
	if s.Outcome.Digest != "" {
		return c.committed(http.StatusOK, b, s.Outcome.Digest)
	}
	status := metav1.Status{}
	if err := json.Unmarshal(s.Outcome.Refusal, &status); err != nil {
		return apierrors.NewInternalError(fmt.Errorf("read how upload %s ended: %w", s.ID, err))
	}
	return &apierrors.StatusError{ErrStatus: status}
}
