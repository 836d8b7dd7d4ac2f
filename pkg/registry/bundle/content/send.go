// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/registry/rest"
)

const (
	// chunkSize is how much goes from the store to a peer in one step at first. It is what a peer that has stopped to
	// take anything keeps in memory: a thousand of them 32 MiB.
	chunkSize = 32 << 10
	// largeSize is how much it is for a peer that has taken growAfter, more than a kernel holds for it, and takes a
	// step in less than slowStep. It saves calls.
	largeSize = 4 * chunkSize
	growAfter = 4 << 20
	slowStep  = time.Second
	// sendTimeout is how long a peer may take to accept a step. A kernel tells of progress in lumps of up to half a
	// buffer: 180 KiB, say, which a reader of 1 KiB/s takes in three minutes.
	sendTimeout = 5 * time.Minute
	// renewAfter is how old a deadline may be that is not set anew.
	renewAfter = time.Second
)

var (
	smallBuffers = sync.Pool{New: func() any { b := make([]byte, chunkSize); return &b }}
	largeBuffers = sync.Pool{New: func() any { b := make([]byte, largeSize); return &b }}
)

// errEnded is why a transfer ends that the server has no more time for.
var errEnded = errors.New("the server ends")

// sender sends a response in steps, each of which has to make progress in time: a client that stops reading
// does not hold the connection, but one that is merely slow does. Where a check is set, nothing is sent of a chunk
// that fails it.
//
// The header of the response is held back until there is something to send, so that what goes wrong before can be
// answered with an error.
type sender struct {
	http.ResponseWriter
	ctx     context.Context
	control *http.ResponseController
	// whole makes the check of content that is sent whole.
	whole   func() *check
	code    int
	began   bool // the header is sent
	dropped bool // the answer is somebody else's
	renewed time.Time
	written int64
	err     error
	gone    bool // the peer takes no more
	unblock func() bool
}

var _ io.ReaderFrom = &sender{}

// newSender returns a sender that ends with ctx. The caller calls finish.
func newSender(ctx context.Context, w http.ResponseWriter) *sender {
	s := &sender{ResponseWriter: w, ctx: ctx, control: http.NewResponseController(w)}
	s.unblock = context.AfterFunc(ctx, s.expire)
	return s
}

// expire ends a write that waits for the peer.
func (s *sender) expire() { _ = s.control.SetWriteDeadline(time.Unix(1, 0)) }

// WriteHeader remembers the code. The refusals of net/http are texts, and become a Status.
func (s *sender) WriteHeader(code int) {
	if s.code != 0 {
		return
	}
	s.code = code
	s.dropped = code >= http.StatusBadRequest
}

// begin sends the header.
func (s *sender) begin() {
	if s.began || s.dropped {
		return
	}
	if s.code == 0 {
		s.code = http.StatusOK
	}
	s.began = true
	s.ResponseWriter.WriteHeader(s.code)
}

func (s *sender) Write(b []byte) (int, error) {
	if s.dropped {
		return len(b), nil
	}
	s.begin()
	if now := time.Now(); now.Sub(s.renewed) > renewAfter {
		// Where deadlines are not supported the write is simply not bounded.
		_ = s.control.SetWriteDeadline(now.Add(sendTimeout))
		s.renewed = now
		// Looked at after the deadline was set: the end of ctx, which sets it to the past, comes before or after both.
		if s.ctx.Err() != nil {
			s.expire()
			s.err = context.Cause(s.ctx)
			return 0, s.err
		}
	}
	n, err := s.ResponseWriter.Write(b)
	s.written += int64(n)
	if err != nil {
		s.err, s.gone = err, true
	}
	return n, err
}

// ReadFrom sends what r has.
func (s *sender) ReadFrom(r io.Reader) (n int64, err error) {
	if s.dropped {
		return io.Copy(io.Discard, r)
	}
	check := (*check)(nil)
	if s.code == http.StatusOK && s.whole != nil {
		check = s.whole()
		defer check.close()
	}
	for last, grown := false, int64(0); !last && err == nil; {
		buffers, began := &smallBuffers, time.Now()
		if n-grown >= growAfter {
			buffers = &largeBuffers
		}
		var took int64
		took, last, err = s.pass(r, check, buffers)
		n += took
		if time.Since(began) > slowStep {
			grown = n
		}
	}
	if err != nil {
		s.err = err
	}
	return n, err
}

// pass sends as much of r as a buffer holds, and reports whether it was the last of it.
func (s *sender) pass(r io.Reader, check *check, buffers *sync.Pool) (n int64, last bool, err error) {
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	got, err := io.ReadFull(r, *buffer)
	last = err == io.EOF || err == io.ErrUnexpectedEOF
	if err != nil && !last {
		return 0, false, err
	}
	if err := check.before((*buffer)[:got], last); err != nil {
		return 0, last, err
	}
	sent, err := s.Write((*buffer)[:got])
	check.after()
	return int64(sent), last, err
}

// finish lifts the deadline, for the next request on the connection, and returns what went wrong. The caller calls
// abort then.
func (s *sender) finish() error {
	if !s.unblock() && s.err == nil {
		s.err = context.Cause(s.ctx)
	}
	if s.err == nil {
		s.begin()
		_ = s.control.SetWriteDeadline(time.Time{})
	}
	if s.err != nil {
		return fmt.Errorf("after %d bytes: %w", s.written, s.err)
	}
	return nil
}

// abort ends an answer that went wrong: with an error, or, when its header is sent, by breaking it, so that nobody
// takes the part for the whole.
func (s *sender) abort(responder rest.Responder, err error) {
	switch {
	case !s.began:
		s.answer(responder, err)
	case s.Header().Get("Content-Length") != "" && errors.Is(context.Cause(s.ctx), context.Canceled):
		// The peer has gone. If it has not, it sees that bytes are missing.
	case !s.gone:
		panic(http.ErrAbortHandler)
	}
}

// refuse gives an error in place of content of a size, of which the part that was asked for is not there (RFC 9110, section 15.5.17).
func (s *sender) refuse(responder rest.Responder, size int64, err error) {
	if s.code == http.StatusRequestedRangeNotSatisfiable {
		s.Header().Set("Content-Range", fmt.Sprintf("%s */%d", rangeUnit, size))
	}
	s.answer(responder, err)
}

// answer gives an error in place of content.
func (s *sender) answer(responder rest.Responder, err error) {
	for _, name := range []string{"Accept-Ranges", "Content-Length", "Content-Type", "ETag", "Last-Modified", "Repr-Digest", "X-Content-Type-Options"} {
		s.Header().Del(name)
	}
	_ = s.control.SetWriteDeadline(time.Time{})
	responder.Error(err)
}
