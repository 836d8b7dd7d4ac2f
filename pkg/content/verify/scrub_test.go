// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"rukpak.io/apiserver/pkg/content"
)

// scrubbed is a Scrubber over a world, and what it did.
type scrubbed struct {
	*Scrubber
	progress Progress
	read     []string // digests, in order
	damaged  []string
	passes   int
}

func scrubber(w *world) *scrubbed {
	s := &scrubbed{}
	s.Scrubber = &Scrubber{
		Store: w.store, Interval: time.Hour, Now: func() time.Time { return w.now },
		Load: func(context.Context) (Progress, error) { return s.progress, nil },
		Save: func(_ context.Context, p Progress) error { s.progress = p; return nil },
		Damaged: func(ctx context.Context, digest string) error {
			s.damaged = append(s.damaged, digest)
			_, err := RemoveDamaged(ctx, w.records, storeName, w.store, digest, nil)
			return err
		},
		Observe: func(_ Progress, digest string, _ int64, _ error) {
			if digest == "" {
				s.passes++
				return
			}
			s.read = append(s.read, digest)
		},
	}
	return s
}

func TestScrubReadsAllOnceAnInterval(t *testing.T) {
	w := newWorld(t)
	whole, broken := w.blob(data("whole")), w.blob(data("broken"))
	w.flip(broken)
	s := scrubber(w)
	all := []string{whole, broken}
	slices.Sort(all)
	wait, err := s.next(t.Context())
	if err != nil || wait != s.Interval {
		t.Fatalf("got %v, %v", wait, err)
	}
	if !slices.Equal(s.read, all) || !slices.Equal(s.damaged, []string{broken}) || s.passes != 1 {
		t.Fatalf("read %v, damaged %v, passes %d", s.read, s.damaged, s.passes)
	}
	if w.has(broken) || !w.has(whole) {
		t.Error("the damaged blob is there, or the other is not")
	}
	want := Progress{Started: w.now, Completed: w.now, Blobs: 2, Bytes: int64(len(data("whole")) + len(data("broken"))), Damaged: 1}
	if s.progress != want {
		t.Errorf("progress is %+v", s.progress)
	}

	w.now = w.now.Add(s.Interval / 2)
	if wait, err := s.next(t.Context()); err != nil || wait != s.Interval/2 || len(s.read) != 2 {
		t.Errorf("before the interval is over: %v, %v, read %v", wait, err, s.read)
	}
	w.now = w.now.Add(s.Interval / 2)
	if _, err := s.next(t.Context()); err != nil || len(s.read) != 3 || s.progress.Blobs != 1 {
		t.Errorf("after the interval: %v, read %v, progress %+v", err, s.read, s.progress)
	}
}

// A pass that was broken off goes on where it was.
func TestScrubResumes(t *testing.T) {
	w := newWorld(t)
	var all []string
	for _, name := range []string{"a", "b", "c", "d"} {
		all = append(all, w.blob(data(name)))
	}
	slices.Sort(all)
	s := scrubber(w)
	ctx, cancel := context.WithCancel(t.Context())
	s.Store = cancelling{w.store, all[2], cancel}
	if _, err := s.next(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if s.progress.Position != all[1] || s.progress.Blobs != 2 {
		t.Fatalf("progress is %+v", s.progress)
	}
	again := scrubber(w)
	again.progress = s.progress
	if _, err := again.next(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(again.read, all[2:]) || again.progress.Blobs != 4 || again.progress.Position != "" {
		t.Errorf("read %v, progress %+v", again.read, again.progress)
	}
}

// cancelling ends a context when one of its blobs is opened.
type cancelling struct {
	Store
	at     string
	cancel context.CancelFunc
}

func (c cancelling) Open(ctx context.Context, digest string, offset, length int64) (io.ReadCloser, error) {
	if digest == c.at {
		c.cancel()
	}
	return c.Store.Open(ctx, digest, offset, length)
}

// unreadable fails to read, as a disk with a bad sector does, or a server that is away.
type unreadable struct{ Store }

func (unreadable) Open(context.Context, string, int64, int64) (io.ReadCloser, error) {
	return nil, errors.New("input/output error")
}

// Nobody knows whether what cannot be read is damaged, so it is not removed.
func TestWhatCannotBeReadIsKept(t *testing.T) {
	w := newWorld(t)
	digest := w.bundle("a", data("a"))
	s := scrubber(w)
	s.Store = unreadable{w.store}
	if _, err := s.next(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(s.damaged) != 0 || s.progress.Failures != 1 {
		t.Errorf("damaged %v, progress %+v", s.damaged, s.progress)
	}
	c := w.checker()
	c.Stores[storeName] = unreadable{w.store}
	report, err := c.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(found(report), []string{"UnreadableBlob"}) {
		t.Errorf("found %v", report.Problems)
	}
	if err := c.Repair(t.Context(), report); err != nil {
		t.Fatal(err)
	}
	if !w.has(digest) {
		t.Error("it was removed")
	}
}

// checking finds out by itself that what it reads is damaged, as a store does that keeps sums of parts.
type checking struct{ Store }

func (checking) Open(context.Context, string, int64, int64) (io.ReadCloser, error) {
	return io.NopCloser(iotest.ErrReader(fmt.Errorf("chunk 7: %w", content.ErrDigestMismatch))), nil
}

func TestDamageThatTheStoreFinds(t *testing.T) {
	w := newWorld(t)
	digest := w.blob(data("a"))
	if _, err := Blob(t.Context(), checking{w.store}, digest, nil); !errors.Is(err, ErrDamaged) {
		t.Errorf("got %v", err)
	}
}

func TestRemoveDamaged(t *testing.T) {
	w := newWorld(t)
	digest := w.blob(data("a"))
	if gone, err := RemoveDamaged(t.Context(), w.records, storeName, w.store, digest, nil); err != nil || gone || !w.has(digest) {
		t.Errorf("a whole blob: %v, %v", gone, err)
	}
	w.flip(digest)
	// Somebody stores it anew while it is read.
	healing := healing{w.store, func() { w.blob(data("a")) }}
	if gone, err := RemoveDamaged(t.Context(), w.records, storeName, &healing, digest, nil); err != nil || gone || !w.has(digest) {
		t.Errorf("a blob that is stored anew meanwhile: %v, %v", gone, err)
	}
	w.flip(digest)
	if gone, err := RemoveDamaged(t.Context(), w.records, storeName, w.store, digest, nil); err != nil || !gone || w.has(digest) {
		t.Errorf("a damaged blob: %v, %v", gone, err)
	}
	if gone, err := RemoveDamaged(t.Context(), w.records, storeName, w.store, digest, nil); err != nil || gone {
		t.Errorf("no blob: %v, %v", gone, err)
	}
	if _, err := RemoveDamaged(t.Context(), w.records, storeName, w.store, "sha256:x", nil); !errors.Is(err, content.ErrInvalidDigest) {
		t.Errorf("no digest: %v", err)
	}
}

// healing calls a function once, after the bytes were opened.
type healing struct {
	Store
	heal func()
}

func (h *healing) Open(ctx context.Context, digest string, offset, length int64) (io.ReadCloser, error) {
	r, err := h.Store.Open(ctx, digest, offset, length)
	if f := h.heal; f != nil {
		h.heal = nil
		f()
	}
	return r, err
}

func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace, begin := NewPace(1<<20), time.Now()
		// The first step is the burst.
		for range 1 + 10<<20/stepSize {
			if err := pace.wait(t.Context(), stepSize); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begin); took.Round(time.Millisecond) != 10*time.Second {
			t.Errorf("10 MiB at 1 MiB/s took %v", took)
		}
	})
	if NewPace(0) != nil {
		t.Error("0 bounds something")
	}
}
