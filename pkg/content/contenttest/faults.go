// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package contenttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"rukpak.io/apiserver/pkg/content"
)

// Fault is what happens to a call that leaves the process.
type Fault int

// Faults.
const (
	None   Fault = iota
	Lost         // it never arrives
	Unsure       // it is carried out, and its answer never arrives
	Busy         // it is refused, and may be tried again later
)

func (f Fault) String() string { return [...]string{"none", "lost", "unsure", "busy"}[f] }

// plan makes calls of a store fail: the one with a number, or that and all after it.
type plan struct {
	fault   Fault
	at      int64
	forEver bool
	calls   atomic.Int64
}

func (p *plan) next() Fault {
	n := p.calls.Add(1) - 1
	if n == p.at || p.forEver && n > p.at {
		return p.fault
	}
	return None
}

// hit reports whether a call failed.
func (p *plan) hit() bool { return p.calls.Load() > p.at }

// deed is something done to a store, and what must hold whether it ended in an error or not.
type deed struct {
	name string
	// before prepares the place.
	before func(t *testing.T, s content.Store)
	do     func(ctx context.Context, s content.Store) error
	// done and undone check, through a store that works, what is to be seen after success; and
	// after an error, where either may be.
	done, undone func(t *testing.T, s content.Store) error
}

// testFaults fails every single call of every method, in every way.
func testFaults(t *testing.T, newHarness func(*testing.T) Harness) {
	for _, forEver := range []bool{false, true} {
		for _, fault := range []Fault{Lost, Unsure, Busy} {
			t.Run(fmt.Sprintf("%v for ever %v", fault, forEver), func(t *testing.T) {
				t.Parallel()
				h := newHarness(t)
				healthy, closeHealthy := h.Open(t)
				for _, d := range h.deeds(t) {
					for at := int64(0); !t.Failed(); at++ {
						p := &plan{fault: fault, at: at, forEver: forEver}
						if d.run(t, h, healthy, p); !p.hit() {
							break
						}
					}
				}
				if err := closeHealthy(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func (d deed) run(t *testing.T, h Harness, healthy content.Store, p *plan) {
	t.Helper()
	faulty := h.Faulty(t, p.next)
	d.before(t, healthy)
	p.calls.Store(0)
	what := fmt.Sprintf("%s, %v at call %d", d.name, p.fault, p.at)
	err := d.do(t.Context(), faulty)
	switch {
	case err == nil:
		if err := d.done(t, healthy); err != nil {
			t.Errorf("%s: it succeeded, and then: %v", what, err)
		}
	case !p.hit():
		t.Errorf("%s: no call failed: %v", what, err)
	case !p.forEver && p.fault == Busy:
		t.Errorf("%s: it was not tried again: %v", what, err)
	case errors.Is(err, errWrong):
		t.Errorf("%s: %v", what, err)
	case errors.Is(err, content.ErrNotFound):
		t.Errorf("%s: a failure looks like content that is not there: %v", what, err)
	default:
		if undone, done := d.undone(t, healthy), d.done(t, healthy); undone != nil && done != nil {
			t.Errorf("%s: it failed (%v), and then: neither undone (%v) nor done (%v)", what, err, undone, done)
		}
	}
	// It can be done now.
	if err := d.do(t.Context(), healthy); err != nil {
		t.Errorf("%s: once more: %v", what, err)
	} else if err := d.done(t, healthy); err != nil {
		t.Errorf("%s: once more: %v", what, err)
	}
	if err := healthy.Sweep(t.Context(), 0); err != nil {
		t.Errorf("%s: sweep: %v", what, err)
	}
	if left := h.Debris(t); len(left) > 0 {
		t.Errorf("%s: debris is left: %q", what, left)
	}
	if err := faulty.Close(); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// deeds are all methods on blobs on both sides of the first border, and storing above the others.
func (h Harness) deeds(t *testing.T) []deed {
	t.Helper()
	all := deeds(t, 1000)
	slices.Sort(h.Borders)
	for i, border := range h.Borders {
		more := deeds(t, border+1)
		if i > 0 {
			more = more[:1]
		}
		all = append(all, more...)
	}
	return all
}

// deeds are all methods on a blob of a size; the first is to store it.
func deeds(t *testing.T, size int64) []deed {
	t.Helper()
	b := Blob{Seed: uint64(size), Size: size}
	all := b.Bytes(t)
	digest := b.Digest()
	has := func(t *testing.T, s content.Store) error {
		got, err := read(t.Context(), s, digest, 0, -1)
		if err == nil && !bytes.Equal(got, all) {
			err = errors.New("other bytes")
		}
		return err
	}
	hasNot := func(t *testing.T, s content.Store) error {
		_, err := s.Stat(t.Context(), digest)
		if !errors.Is(err, content.ErrNotFound) {
			return fmt.Errorf("stat: %v", err)
		}
		return nil
	}
	hasIndex := func(want string) func(*testing.T, content.Store) error {
		return func(t *testing.T, s content.Store) error {
			got, err := readIndex(t.Context(), s, digest, 0, -1)
			if err == nil && got != want {
				err = fmt.Errorf("the index is %q", got)
			}
			return err
		}
	}
	store := func(t *testing.T, s content.Store) {
		put(t, s, b)
		putIndex(t, s, digest, "old")
	}
	remove := func(t *testing.T, s content.Store) {
		if err := s.Delete(t.Context(), digest); err != nil {
			t.Fatal(err)
		}
	}
	write := func(ctx context.Context, s content.Store) error {
		_, err := b.Put(ctx, s)
		return err
	}
	return []deed{
		{fmt.Sprintf("store %d bytes", size), remove, write, has, hasNot},
		{fmt.Sprintf("store %d bytes again", size), store, write, has, has},
		{"delete", store, func(ctx context.Context, s content.Store) error { return s.Delete(ctx, digest) }, hasNot, has},
		{"put an index", store, func(ctx context.Context, s content.Store) error {
			return s.PutIndex(ctx, digest, strings.NewReader("new"), 3)
		}, hasIndex("new"), hasIndex("old")},
		{"read", store, func(ctx context.Context, s content.Store) error {
			got, err := read(ctx, s, digest, 0, -1)
			if err == nil && !bytes.Equal(got, all) {
				err = errWrong
			}
			return err
		}, has, has},
		{"read a range", store, func(ctx context.Context, s content.Store) error {
			got, err := read(ctx, s, digest, size-2, 2)
			if err == nil && !bytes.Equal(got, all[size-2:]) {
				err = errWrong
			}
			return err
		}, has, has},
		{"stat", store, func(ctx context.Context, s content.Store) error {
			info, err := s.Stat(ctx, digest)
			if err == nil && info.Size != size {
				err = errWrong
			}
			return err
		}, has, has},
		{"walk", store, func(ctx context.Context, s content.Store) error {
			found := false
			err := s.Walk(ctx, func(info content.Info) error { found = found || info.Digest == digest; return nil })
			if err == nil && !found {
				err = errWrong
			}
			return err
		}, has, has},
		{"read the mark", func(t *testing.T, s content.Store) {
			if err := s.WriteMark(t.Context(), []byte("mark")); err != nil {
				t.Fatal(err)
			}
			store(t, s)
		}, func(ctx context.Context, s content.Store) error {
			mark, err := s.ReadMark(ctx)
			if err == nil && string(mark) != "mark" {
				err = errWrong
			}
			return err
		}, has, has},
		{"sweep", store, func(ctx context.Context, s content.Store) error { return s.Sweep(ctx, 0) }, has, has},
	}
}

// errWrong is an answer that is no error and not right, which no fault excuses.
var errWrong = errors.New("a wrong answer")
