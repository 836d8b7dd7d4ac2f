// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

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
			if !errors.Is(err, test.want) || r.err != test.want || r.Bytes != test.read {
				t.Errorf("got %v, remembered %v, read %d", err, r.err, r.Bytes)
			}
			// What is left of it is still bounded; of a whole one nothing is left.
			if c.readDeadline.IsZero() != (test.want == nil) {
				t.Errorf("the deadline is %v", c.readDeadline)
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
		"at first":      {took: 50 * time.Second, slowest: SlowestUpload},
		"later":         {took: 2 * time.Minute, read: 100, slowest: SlowestUpload, cut: true},
		"fast enough":   {took: 2 * time.Minute, read: 60 * SlowestUpload, slowest: SlowestUpload},
		"without bound": {took: 2 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			p := &pacedReader{Pace: Pace{Began: time.Now().Add(-test.took), Bytes: test.read, Slowest: test.slowest}}
			if err := p.Check(); (err == ErrTooSlow) != test.cut {
				t.Errorf("too slow: %v, want %v", err, test.cut)
			}
		})
	}
}

// bytesEvery brings some bytes now and then.
type bytesEvery struct {
	n     int
	every time.Duration
	left  int
}

func (b *bytesEvery) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	time.Sleep(b.every)
	n := min(b.n, b.left, len(p))
	b.left -= n
	return n, nil
}

// A body that would hold its place for hours gives it up when somebody waits for it; a faster one goes on, and so does one
// that nobody waits for, or that is slow because the server is.
func TestASlowBodyMakesWay(t *testing.T) {
	const half = SlowestWanted / 2
	for name, test := range map[string]struct {
		rate   int           // bytes a second
		took   time.Duration // by the server, for each read
		wanted time.Duration // when somebody comes; 0 is never
		want   error
	}{
		"nobody waits":         {rate: half},
		"somebody waits":       {rate: half, wanted: 1, want: ErrTooSlow},
		"somebody comes later": {rate: half, wanted: 4 * time.Minute, want: ErrTooSlow},
		"it is fast enough":    {rate: SlowestWanted, wanted: 1},
		"the server is slow":   {rate: SlowestWanted, took: 2 * time.Second, wanted: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				p := newPacedReader(&connection{}, &bytesEvery{n: test.rate, every: time.Second, left: test.rate * 600})
				p.Slowest = SlowestUpload
				p.Wanted = func() bool { return test.wanted > 0 && time.Since(began) >= test.wanted }
				buffer := make([]byte, test.rate)
				var err error
				for err == nil {
					time.Sleep(test.took)
					_, err = p.Read(buffer)
				}
				if test.want == nil && err == io.EOF {
					return
				}
				if !errors.Is(err, test.want) || !errors.Is(p.err, test.want) || !strings.Contains(err.Error(), "others wait for its place") {
					t.Errorf("got %v", err)
				}
				if took := time.Since(began); took < StallTimeout {
					t.Errorf("it had only %s", took)
				}
			})
		})
	}
}
