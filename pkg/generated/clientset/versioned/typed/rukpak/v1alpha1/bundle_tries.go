// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

const (
	// readPatience is how long a read goes on trying without getting a byte further, unless its options say so: a
	// server that is alone is away for less when it is replaced.
	readPatience = 2 * time.Minute
	// readStall is how long a read may wait for the next byte until the request is given up and made anew.
	readStall     = time.Minute
	readMinPause  = 100 * time.Millisecond
	readMaxPause  = 5 * time.Second
	maxRetryDelay = 30 * time.Second
)

// errReadStalled is why a request that brings nothing is given up.
var errReadStalled = errors.New("nothing has come for a minute")

// Retry is what is tried again.
type Retry struct {
	// Err is why.
	Err error
	// Since is when it began to get no further, Next when the next request begins, and Until when patience is over.
	Since, Next, Until time.Time
}

// tries are those of something that is tried again and again.
type tries struct {
	patience time.Duration
	retrying func(Retry) error
	since    time.Time     // of the first one that got no further, zero where there is none
	pause    time.Duration // before the next one
}

// newTries has a patience, and who is told, as they are in options.
func newTries(patience time.Duration, retrying func(Retry) error) tries {
	return tries{patience: cmp.Or(patience, readPatience), retrying: retrying}
}

// succeed tells that one got further.
func (t *tries) succeed() { t.since = time.Time{} }

// further tells that the one that is under way got further.
func (t *tries) further() { t.since, t.pause = time.Now(), readMinPause }

// untilOnePasses tries again what may succeed then, with growing pauses, until patience is over or ctx is. A cause is an
// error that there was already. That one passes does not mean that it got further: who sees that tells it.
func (t *tries) untilOnePasses(ctx context.Context, cause error, try func(context.Context) error) error {
	if t.since.IsZero() {
		t.since, t.pause = time.Now(), readMinPause
	}
	for {
		if cause != nil {
			if err := t.wait(ctx, cause); err != nil {
				return err
			}
		}
		if cause = try(ctx); cause == nil || !retriable(cause) {
			return cause
		}
	}
}

// wait waits before what failed for a cause is tried again. It fails where that is not done any more.
func (t *tries) wait(ctx context.Context, cause error) error {
	wait := max(t.pause/2+rand.N(t.pause/2), min(retryAfter(cause), maxRetryDelay))
	if ctx.Err() != nil || time.Since(t.since)+wait > t.patience {
		return cause
	}
	if err := tell(t.retrying, cause, t.since, wait, t.patience); err != nil {
		return err
	}
	t.pause = min(2*t.pause, readMaxPause)
	timer := time.NewTimer(wait)
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		timer.Stop()
		return fmt.Errorf("%w (%w)", context.Cause(ctx), cause)
	}
}

// tell tells who wants to know that something is tried again, and returns an error if that is not wanted.
func tell(retrying func(Retry) error, cause error, since time.Time, wait, patience time.Duration) error {
	if retrying == nil {
		return nil
	}
	return retrying(Retry{Err: cause, Since: since, Next: time.Now().Add(wait), Until: since.Add(patience)})
}

// watchedGet makes one request, which ends when there is no answer for readStall, or a read of its body waits for as long.
func (c *bundles) watchedGet(ctx context.Context, request *rest.Request, header http.Header, name string) (*http.Response, error) {
	ctx, end := context.WithCancelCause(ctx)
	waiting := time.AfterFunc(readStall, func() { end(errReadStalled) })
	response, err := c.roundTrip(ctx, request, http.MethodGet, nil, header, name)
	waiting.Stop()
	if err != nil {
		if context.Cause(ctx) == errReadStalled {
			// Not every transport says why.
			err = &transportError{fmt.Errorf("content of bundle %q: %w", name, errReadStalled)}
		}
		end(nil)
		return nil, err
	}
	response.Body = &watchedBody{response.Body, ctx, end}
	return response, nil
}

// watchedBody is what a request brings.
type watchedBody struct {
	io.ReadCloser
	ctx context.Context // of the request
	end context.CancelCauseFunc
}

func (b *watchedBody) Read(p []byte) (int, error) {
	defer time.AfterFunc(readStall, func() { b.end(errReadStalled) }).Stop()
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF && context.Cause(b.ctx) == errReadStalled {
		err = errReadStalled
	}
	return n, err
}

// Close ends the request, too.
func (b *watchedBody) Close() error {
	defer b.end(nil)
	return b.ReadCloser.Close()
}
