// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// connection is a ResponseWriter that remembers what is done to it.
type connection struct {
	code                        int
	steps                       []int
	readDeadline, writeDeadline time.Time
	bounded                     bool // each step had a deadline that was not over
	takes                       time.Duration
	err                         error
}

func (c *connection) Header() http.Header  { return http.Header{} }
func (c *connection) WriteHeader(code int) { c.code = code }
func (c *connection) Write(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	time.Sleep(c.takes)
	c.bounded = (c.bounded || len(c.steps) == 0) && c.writeDeadline.After(time.Now())
	c.steps = append(c.steps, len(p))
	return len(p), nil
}
func (c *connection) SetReadDeadline(t time.Time) error  { c.readDeadline = t; return nil }
func (c *connection) SetWriteDeadline(t time.Time) error { c.writeDeadline = t; return nil }

func TestSenderSendsInSteps(t *testing.T) {
	c := &connection{}
	s := newSender(t.Context(), c)
	const size = growAfter + largeSize + 7
	n, err := io.Copy(s, io.LimitReader(zeros{}, size))
	if n != size || err != nil || s.written != size {
		t.Fatalf("%d bytes of %d, counted %d: %v", n, size, s.written, err)
	}
	if first := c.steps[:growAfter/chunkSize]; slices.Min(first) != chunkSize || slices.Max(first) != chunkSize {
		t.Errorf("the first steps are %v", first)
	}
	if rest := c.steps[growAfter/chunkSize:]; !slices.Equal(rest, []int{largeSize, 7}) {
		t.Errorf("the other steps are %v", rest)
	}
	if !c.bounded {
		t.Error("a step had no deadline")
	}
	if err := s.finish(); err != nil || !c.writeDeadline.IsZero() || c.code != http.StatusOK {
		t.Errorf("finish: %v, deadline %v, code %d", err, c.writeDeadline, c.code)
	}
}

// A peer that becomes slow gets small steps again.
func TestSenderMakesSmallStepsForASlowPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &connection{takes: 2 * slowStep}
		s := newSender(t.Context(), c)
		if _, err := io.Copy(s, io.LimitReader(zeros{}, 2*growAfter)); err != nil || slices.Max(c.steps) != chunkSize {
			t.Errorf("the largest step has %d bytes: %v", slices.Max(c.steps), err)
		}
		if err := s.finish(); err != nil {
			t.Error(err)
		}
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// However slow a peer is: while it takes a step in time, the next one has its time too.
func TestSenderIsPatientWithAPeerThatIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &connection{takes: sendTimeout - time.Second}
		s := newSender(t.Context(), c)
		if _, err := io.Copy(s, io.LimitReader(zeros{}, 2*chunkSize)); err != nil || !c.bounded {
			t.Errorf("each step was in time: %v, %v", c.bounded, err)
		}
		if err := s.finish(); err != nil {
			t.Error(err)
		}
	})
}

func TestSenderRemembersWhatWentWrong(t *testing.T) {
	gone := errors.New("gone")
	for name, test := range map[string]struct {
		peer   error
		source io.Reader
	}{
		"the reader went away": {peer: gone, source: strings.NewReader("x")},
		"the store failed":     {source: io.MultiReader(strings.NewReader("x"), broken{gone})},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSender(t.Context(), &connection{err: test.peer})
			if _, err := io.Copy(s, test.source); !errors.Is(err, gone) {
				t.Errorf("copy: %v", err)
			}
			if err := s.finish(); !errors.Is(err, gone) || s.gone != (test.peer != nil) {
				t.Errorf("finish: %v, the peer is gone: %v", err, s.gone)
			}
		})
	}
}

// The end of the context ends a step that hangs, and lets none begin.
func TestSenderEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		c := &connection{}
		s := newSender(ctx, c)
		if _, err := s.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		cancel(errEnded)
		synctest.Wait()
		if !c.writeDeadline.Before(time.Now()) {
			t.Errorf("the deadline is %v", c.writeDeadline)
		}
		time.Sleep(2 * renewAfter)
		if _, err := s.Write([]byte("x")); !errors.Is(err, errEnded) {
			t.Errorf("a step after the end: %v", err)
		}
		if err := s.finish(); !errors.Is(err, errEnded) || !c.writeDeadline.Before(time.Now()) {
			t.Errorf("finish: %v, deadline %v", err, c.writeDeadline)
		}
	})
}
