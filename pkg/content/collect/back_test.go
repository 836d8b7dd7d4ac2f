// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"rukpak.io/apiserver/pkg/content/filesystem"
	"rukpak.io/apiserver/pkg/content/reference"
)

// tombstones lists those there are, as their states.
func (s *site) tombstones(t *testing.T) []reference.Tombstone {
	t.Helper()
	var all []reference.Tombstone
	for tomb, err := range s.records.Tombstones(t.Context(), storeName) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, tomb)
	}
	return all
}

// orphan stores what nobody has, with a tombstone.
func (s *site) orphan(t *testing.T, n int, deleting bool) Pair {
	t.Helper()
	pair := Pair{BundleUID: "nobody", Digest: blob(n).Digest()}
	if _, err := blob(n).Put(t.Context(), s.store); err != nil {
		t.Fatal(err)
	}
	if ok, err := s.records.Mark(t.Context(), storeName, pair.Digest); !ok || err != nil {
		t.Fatal(ok, err)
	}
	for _, tomb := range s.tombstones(t) {
		if !deleting || tomb.Digest != pair.Digest {
			continue
		}
		if _, ok, err := s.records.StartDeleting(t.Context(), tomb); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	return pair
}

// TestADeletionThatKeepsFailingKeepsNobodyOut: whoever stores the content has it, and it is not deleted later.
func TestADeletionThatKeepsFailingKeepsNobodyOut(t *testing.T) {
	s := newSite(t)
	s.commit(t, "other", blob(1), true)
	orphan := s.orphan(t, 2, false)
	s.cfg.Store = &failingStore{Store: s.store, err: errors.New("access denied")}
	for range 2 {
		s.wait()
		if report, err := s.Collect(t.Context()); err != nil || report.Failures != 1 {
			t.Fatalf("got %+v, %v", report, err)
		}
		if err := s.records.TryAdd(t.Context(), s.ref(orphan), "ns", "app"); !errors.Is(err, reference.ErrDeleting) {
			t.Errorf("right after the deletion: %v", err) // what the store was asked may be on its way
		}
		s.pass()
		s.round(t)
	}
	pair := s.commit(t, "app", blob(2), true)
	s.cfg.Store = s.store
	for range 3 {
		s.wait()
		s.round(t)
	}
	s.want(t, pair, true, true)
}

// TestDeletionsEndWhileTheStateCannotBeRead: what keeps content from being stored does not depend on that.
func TestDeletionsEndWhileTheStateCannotBeRead(t *testing.T) {
	for _, liveErr := range []error{errors.New("a bundle cannot be decoded"), ErrHeld} {
		t.Run(liveErr.Error(), func(t *testing.T) {
			s := newSite(t)
			damaged := s.commit(t, "app", blob(1), true)
			if _, ok, err := s.records.StartRemoving(t.Context(), storeName, damaged.Digest); !ok || err != nil {
				t.Fatal(ok, err)
			}
			orphan := s.orphan(t, 2, true)
			s.liveErr = liveErr
			s.pass()
			if _, err := s.Collect(t.Context()); !errors.Is(err, liveErr) {
				t.Fatalf("got %v", err)
			}
			for _, pair := range []Pair{damaged, orphan} {
				pair.BundleUID = "new"
				if err := s.records.TryAdd(t.Context(), s.ref(pair), "ns", "new"); err != nil {
					t.Error(err)
				}
				s.want(t, pair, true, true)
			}
		})
	}
}

// TestTimesOfAClockThatWasAhead: they keep nothing from being stored, nor from being collected, and nothing goes at once.
func TestTimesOfAClockThatWasAhead(t *testing.T) {
	s := newSite(t)
	s.commit(t, "other", blob(1), true)
	const ahead = 365 * 24 * time.Hour
	s.now = s.now.Add(ahead)
	pending, deleting, wanted := s.orphan(t, 2, false), s.orphan(t, 3, true), s.orphan(t, 4, true)
	stale := s.commit(t, "gone", blob(5), false)
	s.now = s.now.Add(-ahead)
	if report := s.round(t); report.RemovedRefs+report.DeletedBlobs > 0 {
		t.Errorf("removed at once: %+v", report)
	}
	if err := s.records.TryAdd(t.Context(), s.ref(wanted), "ns", "app"); err != nil {
		t.Error(err)
	}
	s.live[wanted] = struct{}{}
	s.wait()
	s.round(t)
	for _, pair := range []Pair{pending, deleting} {
		s.want(t, pair, false, false)
	}
	s.want(t, stale, false, true)
	s.wait()
	s.round(t)
	s.want(t, stale, false, false)
	s.want(t, wanted, true, true)
	if left := s.tombstones(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestWhatEndsAHold: content goes only after a time in which each round of one leader found the state suspicious.
func TestWhatEndsAHold(t *testing.T) {
	for name, between := range map[string]func(t *testing.T, s *site){
		"another leader in between": func(t *testing.T, s *site) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := s.Run(ctx, time.Hour); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		},
		"a state that cannot be read in between": func(t *testing.T, s *site) {
			s.liveErr = errors.New("etcd is away")
			if _, err := s.Collect(t.Context()); !errors.Is(err, s.liveErr) {
				t.Fatal(err)
			}
			s.liveErr = nil
		},
		"a state that was not looked at in between": func(t *testing.T, s *site) {
			s.liveErr = fmt.Errorf("%w: a loss was accepted", ErrHeld)
			if _, err := s.Collect(t.Context()); !errors.Is(err, ErrHeld) {
				t.Fatal(err)
			}
			s.liveErr = nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			pair := s.commit(t, "app", blob(1), false)
			s.wait()
			held := func(want bool) {
				t.Helper()
				if _, err := s.Collect(t.Context()); errors.Is(err, ErrHeld) != want || !want && err != nil {
					t.Fatalf("got %v", err)
				}
			}
			held(true)
			between(t, s)
			s.now = s.now.Add(25 * time.Hour)
			held(true)
			s.want(t, pair, true, true)
			s.now = s.now.Add(25 * time.Hour)
			held(false)
			s.want(t, pair, false, true)
		})
	}
}

// TestTwoStores: the content of one is not missing in the other.
func TestTwoStores(t *testing.T) {
	s := newSite(t)
	cold, err := filesystem.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cold.Close(); err != nil {
			t.Error(err)
		}
	})
	hot := s.commit(t, "hot", blob(1), true)
	other := s.cfg
	other.StoreName, other.Store = "cold", cold
	c, err := New(other)
	if err != nil {
		t.Fatal(err)
	}
	far, lost := Pair{BundleUID: "far", Digest: blob(2).Digest()}, Pair{BundleUID: "lost", Digest: blob(3).Digest()}
	for _, pair := range []Pair{far, lost} {
		if err := s.records.Add(t.Context(), reference.Ref{Store: "cold", Digest: pair.Digest, BundleUID: pair.BundleUID}, "ns", "app"); err != nil {
			t.Fatal(err)
		}
		s.live[pair] = struct{}{}
	}
	if _, err := blob(2).Put(t.Context(), cold); err != nil {
		t.Fatal(err)
	}
	if report := s.round(t); len(report.Missing) > 0 || len(report.Unrecorded) != 2 {
		t.Errorf("the first: missing %v, without a record %v", report.Missing, report.Unrecorded)
	}
	report, err := c.Collect(t.Context())
	if err != nil || fmt.Sprint(report.Missing) != fmt.Sprint([]Pair{lost}) || fmt.Sprint(report.Unrecorded) != fmt.Sprint([]Pair{hot}) {
		t.Errorf("the second: missing %v, without a record %v, %v", report.Missing, report.Unrecorded, err)
	}
}
