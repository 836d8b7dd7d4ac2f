// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// connection is a ResponseWriter that remembers what is done to it.
type connection struct {
	steps                       []int
	readDeadline, writeDeadline time.Time
	bounded                     bool // each step had a deadline
	err                         error
}

func (c *connection) Header() http.Header { return http.Header{} }
func (c *connection) WriteHeader(int)     {}
func (c *connection) Write(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	c.bounded = (c.bounded || len(c.steps) == 0) && !c.writeDeadline.IsZero()
	c.steps = append(c.steps, len(p))
	return len(p), nil
}
func (c *connection) SetReadDeadline(t time.Time) error  { c.readDeadline = t; return nil }
func (c *connection) SetWriteDeadline(t time.Time) error { c.writeDeadline = t; return nil }

func TestPacedWriter(t *testing.T) {
	c := &connection{}
	w := newPacedWriter(c)
	const size = 2*bufferSize + 7
	n, err := io.Copy(w, io.LimitReader(zeros{}, size))
	if n != size || err != nil || w.written != size {
		t.Fatalf("%d bytes of %d, counted %d: %v", n, size, w.written, err)
	}
	if len(c.steps) != 3 || c.steps[0] != bufferSize || c.steps[2] != 7 {
		t.Errorf("steps are %v", c.steps)
	}
	if !c.bounded {
		t.Error("a step had no deadline")
	}
	if err := w.finish(); err != nil || !c.writeDeadline.IsZero() {
		t.Errorf("finish: %v, deadline %v", err, c.writeDeadline)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestPacedWriterRemembersWhatWentWrong(t *testing.T) {
	gone := errors.New("gone")
	for name, test := range map[string]struct {
		peer   error
		source io.Reader
	}{
		"the reader went away": {peer: gone, source: strings.NewReader("x")},
		"the store failed":     {source: io.MultiReader(strings.NewReader("x"), broken{gone})},
	} {
		t.Run(name, func(t *testing.T) {
			w := newPacedWriter(&connection{err: test.peer})
			if _, err := io.Copy(w, test.source); !errors.Is(err, gone) {
				t.Errorf("copy: %v", err)
			}
			if err := w.finish(); !errors.Is(err, gone) {
				t.Errorf("finish: %v", err)
			}
		})
	}
}

type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

func TestPacedReader(t *testing.T) {
	cut := errors.New("connection reset")
	for name, test := range map[string]struct {
		body io.Reader
		read int64
		want error
	}{
		"a whole body":        {strings.NewReader("abc"), 3, nil},
		"one that is cut":     {io.MultiReader(strings.NewReader("ab"), broken{cut}), 2, cut},
		"one that ends early": {io.MultiReader(strings.NewReader("a"), broken{io.ErrUnexpectedEOF}), 1, io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			c := &connection{}
			r := newPacedReader(c, test.body)
			_, err := io.ReadAll(r)
			if !errors.Is(err, test.want) || r.err != test.want || r.read != test.read {
				t.Errorf("got %v, remembered %v, read %d", err, r.err, r.read)
			}
			if c.readDeadline.IsZero() {
				t.Error("no deadline was set")
			}
			if r.finish(); !c.readDeadline.IsZero() {
				t.Error("the deadline stays")
			}
		})
	}
}

// The reader of content that is closed under it, as net/http's goroutine for several ranges can be, ends with an error.
func TestAClosedBlobIsNotRead(t *testing.T) {
	b := &blob{ctx: t.Context(), size: 10}
	b.close()
	if _, err := b.Read(make([]byte, 1)); !errors.Is(err, errClosed) {
		t.Errorf("got %v", err)
	}
}

// A body that holds its place with a byte now and then is cut off after its first minute; one that is fast enough, or
// may take its time, is not.
func TestABodyThatCrawlsIsCutOff(t *testing.T) {
	for name, test := range map[string]struct {
		took    time.Duration
		read    int64
		slowest int64
		cut     bool
	}{
		"at first":      {took: 50 * time.Second, slowest: slowestUpload},
		"later":         {took: 2 * time.Minute, read: 100, slowest: slowestUpload, cut: true},
		"fast enough":   {took: 2 * time.Minute, read: 60 * slowestUpload, slowest: slowestUpload},
		"without bound": {took: 2 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			p := &pacedReader{began: time.Now().Add(-test.took), read: test.read, slowest: test.slowest}
			if p.tooSlow() != test.cut {
				t.Errorf("too slow: %v, want %v", p.tooSlow(), test.cut)
			}
		})
	}
}
