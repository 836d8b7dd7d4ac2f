// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"errors"
	"io"
	"strings"
	"testing"
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
		"at first":      {took: 50 * time.Second, slowest: SlowestUpload},
		"later":         {took: 2 * time.Minute, read: 100, slowest: SlowestUpload, cut: true},
		"fast enough":   {took: 2 * time.Minute, read: 60 * SlowestUpload, slowest: SlowestUpload},
		"without bound": {took: 2 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			p := &pacedReader{began: time.Now().Add(-test.took), read: test.read, slowest: test.slowest}
			if TooSlow(p.began, p.read, p.slowest) != test.cut {
				t.Errorf("too slow: %v, want %v", TooSlow(p.began, p.read, p.slowest), test.cut)
			}
		})
	}
}
