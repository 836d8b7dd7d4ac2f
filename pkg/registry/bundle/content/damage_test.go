// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"testing"
	"time"

	"rukpak.io/apiserver/pkg/tarball"
)

// putNoise writes content of about this size, which does not compress.
func (w *world) putNoise(name string, size int) ([]byte, tarball.Summary) {
	w.t.Helper()
	noise := make([]byte, size)
	if _, err := rand.NewChaCha8([32]byte{}).Read(noise); err != nil {
		w.t.Fatal(err)
	}
	return w.put(name, string(noise))
}

// damage changes a bit of the stored bytes.
func (w *world) damage(digest string, at int64) {
	w.t.Helper()
	f, err := os.OpenFile(w.blob(digest), os.O_RDWR, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	bit := make([]byte, 1)
	if _, err := f.ReadAt(bit, at); err != nil {
		w.t.Fatal(err)
	}
	bit[0] ^= 1
	if _, err := f.WriteAt(bit, at); err != nil {
		w.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		w.t.Fatal(err)
	}
}

// broken reads content, which has to break off, and returns what came.
func (w *world) readBroken(name string) []byte {
	w.t.Helper()
	res, err := w.server.Client().Get(w.server.URL + "/" + name)
	if err != nil {
		w.t.Fatal(err)
	}
	got, err := io.ReadAll(res.Body)
	if err == nil {
		w.t.Errorf("%d: all %d bytes came", res.StatusCode, len(got))
	}
	if err := res.Body.Close(); err != nil {
		w.t.Fatal(err)
	}
	<-w.served
	return got
}

// becomes waits until the content of a bundle is available or not.
func (w *world) becomes(name string, want bool) {
	w.t.Helper()
	for end := time.Now().Add(10 * time.Second); available(w.now(name)) != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("available: %v", !want)
		}
	}
}

// Whatever bit is wrong: nobody gets the whole of it, the bytes are removed, the bundle says so, and content that is
// written again is served.
func TestDamagedContentIsNotServedWhole(t *testing.T) {
	const size = growAfter + 3*chunkSize + 100
	for name, test := range map[string]struct {
		at    int64
		known bool // to this server, which has taken it or read it before
	}{
		"at the start":           {at: 10},
		"in the middle":          {at: 3 * chunkSize},
		"at the end":             {at: size},
		"at the start, known":    {at: 10, known: true},
		"in the middle, known":   {at: growAfter + chunkSize + 5, known: true},
		"in the last one, known": {at: size, known: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.classes["raw"].Limits = nil
			w.addUpload("app")
			stored, summary := w.putNoise("app", size)
			if !test.known {
				w.rest.seals = newSeals()
			}
			w.damage(summary.Digest, test.at)
			if test.known && test.at < chunkSize {
				got := w.do(http.MethodGet, "app", nil)
				if kind, _ := got.cause(t); got.code != http.StatusConflict || kind != string(CauseContentLost) || got.header.Get("ETag") != "" {
					t.Errorf("%d, %v: %s", got.code, got.header, got.body)
				}
			} else if got := w.readBroken("app"); test.known && !bytes.HasPrefix(stored, got) {
				t.Error("wrong bytes were sent of content that was known")
			}
			w.becomes("app", false)
			if _, err := os.Stat(w.blob(summary.Digest)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the damaged bytes: %v", err)
			}
			w.rest.CheckStored(t.Context(), w.now("app"))
			if available(w.now("app")) {
				t.Error("it is said to be found")
			}
			w.putNoise("app", size)
			if got := w.do(http.MethodGet, "app", nil); got.code != http.StatusOK || !bytes.Equal(got.body, stored) || !available(w.now("app")) {
				t.Errorf("written again: %d", got.code)
			}
		})
	}
}

// Small content is looked at before anything of it is sent, so that the reader learns what is wrong.
func TestDamagedSmallContentIsAnError(t *testing.T) {
	w := newWorld(t)
	w.addUpload("app")
	_, summary := w.put("app", "x")
	w.damage(summary.Digest, summary.Size-1)
	if head := w.do(http.MethodHead, "app", nil); head.code != http.StatusOK {
		t.Errorf("HEAD, which reads nothing: %d", head.code)
	}
	got := w.do(http.MethodGet, "app", nil)
	if kind, _ := got.cause(t); got.code != http.StatusConflict || kind != string(CauseContentLost) {
		t.Errorf("%d: %s", got.code, got.body)
	}
	if available(w.now("app")) {
		t.Error("it is said to be available")
	}
}

// What was read wrong once and is whole stays.
func TestAPassingFaultLosesNothing(t *testing.T) {
	w := newWorld(t)
	w.addUpload("app")
	_, summary := w.put("app", "x")
	w.store.opened = func(r io.ReadCloser) io.ReadCloser {
		w.store.opened = nil
		return readCloser{io.MultiReader(bytes.NewReader(make([]byte, 10)), io.LimitReader(r, summary.Size-10)), r}
	}
	if got := w.do(http.MethodGet, "app", nil); got.code != http.StatusServiceUnavailable || got.status(t).Details.RetryAfterSeconds < 1 {
		t.Errorf("%d: %s", got.code, got.body)
	}
	if got := w.do(http.MethodGet, "app", nil); got.code != http.StatusOK || !available(w.now("app")) {
		t.Errorf("read again: %d", got.code)
	}
}

type readCloser struct {
	io.Reader
	io.Closer
}

// Damaged bytes that cannot be removed, or read again, are an error of the server, and no loss.
func TestDamageThatCannotBeMended(t *testing.T) {
	trouble := errors.New("input/output error")
	for name, breakIt := range map[string]func(*world){
		"removed": func(w *world) { w.store.delete = trouble },
		"read again": func(w *world) {
			w.store.opened = func(r io.ReadCloser) io.ReadCloser {
				w.store.opened = func(r io.ReadCloser) io.ReadCloser { return readCloser{broken{trouble}, r} }
				return r
			}
		},
		"read at the same time": func(w *world) { w.rest.rereads.Store(w.now("app").Status.Content.Digest, true) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addUpload("app")
			_, summary := w.put("app", "x")
			w.damage(summary.Digest, 20)
			breakIt(w)
			if got := w.do(http.MethodGet, "app", nil); got.code != http.StatusServiceUnavailable {
				t.Errorf("%d: %s", got.code, got.body)
			}
			if !available(w.now("app")) {
				t.Error("it is said to be lost")
			}
		})
	}
}

// A store that fails half-way breaks the answer off.
func TestAStoreThatFailsHalfWay(t *testing.T) {
	w := newWorld(t)
	w.addUpload("app")
	stored, _ := w.putNoise("app", 5*chunkSize)
	w.store.opened = func(r io.ReadCloser) io.ReadCloser {
		return readCloser{io.MultiReader(io.LimitReader(r, 2*chunkSize), broken{errors.New("input/output error")}), r}
	}
	if got := w.readBroken("app"); !bytes.HasPrefix(stored, got) {
		t.Error("other bytes came")
	}
	w.store.opened = nil
	if got := w.do(http.MethodGet, "app", nil); got.code != http.StatusOK || !available(w.now("app")) {
		t.Errorf("read again: %d", got.code)
	}
}

func TestSealsKeepWhatWasUsedLately(t *testing.T) {
	s := newSeals()
	half := make([]uint64, maxSums/2)
	s.keep("a", half)
	s.keep("b", half)
	s.keep("too many", make([]uint64, maxSums+1))
	s.find("a")
	s.keep("c", half)
	s.keep("c", half)
	if s.find("a") == nil || s.find("b") != nil || s.find("c") == nil || s.find("too many") != nil || s.sums != maxSums {
		t.Errorf("kept are %v", s.all)
	}
	s.forget("a")
	s.forget("a")
	if s.find("a") != nil || s.sums != maxSums/2 {
		t.Errorf("%d sums after one was forgotten", s.sums)
	}
}
