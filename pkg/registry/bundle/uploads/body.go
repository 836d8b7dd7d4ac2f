// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package uploads

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	subresource "rukpak.io/apiserver/pkg/registry/bundle/content"
)

var (
	errInterrupted = errors.New("another request to the upload has come")
	errEnded       = errors.New("the server ends; go on at another one, or at the next")
)

// body reads the body of a request, which another goroutine can interrupt. It remembers how it ended.
type body struct {
	subresource.Pace
	from        io.Reader
	control     *http.ResponseController
	err         error                 // other than io.EOF
	interrupted atomic.Pointer[error] // why, if it is

	// ended means that there is nothing more to read. net/http then reads on to see whether the client goes away, and
	// would take a deadline for that.
	mu    sync.Mutex
	ended bool
}

func (r *REST) newBody(w http.ResponseWriter, req *http.Request) *body {
	return &body{
		Pace: subresource.Pace{Began: time.Now(), Slowest: subresource.SlowestUpload, Wanted: r.places.Waiting},
		from: req.Body, control: http.NewResponseController(w), ended: req.ContentLength == 0,
	}
}

func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	// Where deadlines are not supported a read is simply not bounded. The deadline comes before the look: that of
	// an interruption is later than this one, or seen.
	_ = b.control.SetReadDeadline(time.Now().Add(subresource.StallTimeout))
	if cause := b.interrupted.Load(); cause != nil {
		b.err = *cause
		return 0, b.err
	}
	if err := b.Check(); err != nil {
		b.err = err
		return 0, b.err
	}
	n, err := b.Take(b.from, p)
	if err == io.EOF {
		b.end()
	} else if err != nil {
		b.err = err
		if cause := b.interrupted.Load(); cause != nil {
			b.err = *cause
		}
	}
	return n, err
}

// begun reports whether the body was asked for any of its bytes. Of no body it is false.
func (b *body) begun() bool { return b != nil && (b.Bytes > 0 || b.err != nil) }

// followed reports whether another request to the upload has come while this one was read.
func (b *body) followed() bool {
	cause := b.interrupted.Load()
	return cause != nil && errors.Is(*cause, errInterrupted)
}

// end notes that all has come. An interruption that came with the last byte is taken back.
func (b *body) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	_ = b.control.SetReadDeadline(time.Time{})
}

// interrupt ends the reading, soon: what has come until then is kept. A request that has read all goes on.
func (b *body) interrupt(cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return
	}
	b.interrupted.CompareAndSwap(nil, &cause)
	_ = b.control.SetReadDeadline(time.Now())
}

// running is a request that appends to a session in this process.
type running struct {
	body *body
	done chan struct{}
}

// settleTimeout is how long a request waits for one before it to keep what it has.
const settleTimeout = 20 * time.Second

// begin makes a request the one that appends to its session in this process. One that does already is ended, and keeps
// what it has: its client has most likely gone, or it would not have come again. Requests to other replicas are kept
// apart by the record of the session alone.
func (r *REST) begin(c *call, b *body) (end func(), err error) {
	for {
		r.mu.Lock()
		now := r.running[c.id]
		if now == nil {
			mine := &running{body: b, done: make(chan struct{})}
			r.running[c.id] = mine
			if r.ended {
				b.interrupt(errEnded)
			}
			r.mu.Unlock()
			return func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				if r.running[c.id] == mine {
					delete(r.running, c.id)
					close(mine.done)
				}
			}, nil
		}
		r.mu.Unlock()
		if err := r.interrupt(c, now); err != nil {
			return nil, err
		}
	}
}

// EndAppends ends the requests that append, and those that come, since the server ends: each keeps what it has, and its client goes on
// from there. Of one that begins an upload nothing is kept, and its client begins anew.
func (r *REST) EndAppends() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	for _, now := range r.running {
		now.body.interrupt(errEnded)
	}
}

// settle ends the request that appends to a session in this process, if there is one, so that the session stands still.
func (r *REST) settle(c *call) error {
	r.mu.Lock()
	now := r.running[c.id]
	r.mu.Unlock()
	if now == nil {
		return nil
	}
	return r.interrupt(c, now)
}

// interrupt ends a request that appends, on behalf of another one of the same user.
func (r *REST) interrupt(c *call, now *running) error {
	if _, _, err := r.find(c); err != nil {
		return err
	}
	if err := now.settle(c.ctx); err != nil {
		return unavailable(c, "end the request that came before this one", err)
	}
	return nil
}

func (r *running) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	r.body.interrupt(errInterrupted)
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
