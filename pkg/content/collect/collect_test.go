// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/contenttest"
	"rukpak.io/apiserver/pkg/content/etcdtest"
	"rukpak.io/apiserver/pkg/content/filesystem"
	"rukpak.io/apiserver/pkg/content/reference"
)

// site is a collector over a real etcd and real files.
type site struct {
	*Collector
	store   content.Store
	records *reference.Records
	now     time.Time
	live    map[Pair]struct{}
	liveErr error
}

func newSite(t *testing.T) *site {
	t.Helper()
	store, err := filesystem.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &site{store: store, now: start, live: map[Pair]struct{}{}}
	clock := func() time.Time { return s.now }
	s.records = reference.New(etcdtest.Start(t).KV, "/test", clock)
	s.Collector, err = New(Config{
		StoreName: storeName, Store: store, Records: s.records, Now: clock,
		Live:  func(context.Context) (map[Pair]struct{}, error) { return s.live, s.liveErr },
		Grace: grace, Hold: 24 * time.Hour, HoldAbove: 3,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// commit gives content to a bundle, as a committer does; named says whether it comes to the status.
func (s *site) commit(t *testing.T, uid string, blob contenttest.Blob, named bool) Pair {
	t.Helper()
	pair := Pair{BundleUID: uid, Digest: blob.Digest()}
	if err := s.records.Add(t.Context(), s.ref(pair), "ns", uid); err != nil {
		t.Fatal(err)
	}
	if _, err := blob.Put(t.Context(), s.store); err != nil {
		t.Fatal(err)
	}
	if named {
		s.live[pair] = struct{}{}
	}
	return pair
}

func (s *site) ref(p Pair) reference.Ref {
	return reference.Ref{Store: storeName, Digest: p.Digest, BundleUID: p.BundleUID}
}

func (s *site) forget(p Pair) { delete(s.live, p) }

// pass is the time after which a deletion is taken back.
func (s *site) pass() { s.now = s.now.Add(takeBack + time.Second) }

func (s *site) wait() { s.now = s.now.Add(grace + time.Second) }

func (s *site) round(t *testing.T) Report {
	t.Helper()
	report, err := s.Collect(t.Context())
	if err != nil || report.Failures > 0 {
		t.Fatalf("round: %v, %v", report.Errors, err)
	}
	return report
}

func (s *site) want(t *testing.T, p Pair, record, blob bool) {
	t.Helper()
	has, err := s.records.Has(t.Context(), s.ref(p))
	if err != nil || has != record {
		t.Errorf("record of %s: %v, %v, want %v", p.BundleUID, has, err, record)
	}
	_, err = s.store.Stat(t.Context(), p.Digest)
	if found := err == nil; found != blob || (err != nil && !errors.Is(err, content.ErrNotFound)) {
		t.Errorf("blob of %s: %v, want %v", p.BundleUID, err, blob)
	}
}

func blob(n int) contenttest.Blob { return contenttest.Blob{Seed: uint64(n), Size: int64(n) * 100} }

func TestCollectInItsTime(t *testing.T) {
	s := newSite(t)
	kept := s.commit(t, "kept", blob(1), true)
	gone := s.commit(t, "gone", blob(2), true)
	shared := s.commit(t, "shares with kept", blob(1), true)
	s.forget(gone)
	s.forget(shared)

	want := func(report Report, want Report) {
		t.Helper()
		want.Looked = true
		if fmt.Sprint(report) != fmt.Sprint(want) {
			t.Errorf("report is %+v, want %+v", report, want)
		}
	}
	want(s.round(t), Report{LiveRefs: 1, Refs: 3, Blobs: 2, BlobBytes: 300, GarbageRefs: 2, GarbageBlobs: 1, GarbageBytes: 200}) // too young
	s.want(t, gone, true, true)
	s.wait()
	want(s.round(t), Report{LiveRefs: 1, Refs: 3, RemovedRefs: 2, Blobs: 2, BlobBytes: 300, Tombstoned: 1, GarbageBlobs: 1, GarbageBytes: 200})
	s.want(t, gone, false, true)
	want(s.round(t), Report{LiveRefs: 1, Refs: 1, Blobs: 2, BlobBytes: 300, GarbageBlobs: 1, GarbageBytes: 200}) // the tombstone is too young
	s.wait()
	want(s.round(t), Report{LiveRefs: 1, Refs: 1, Blobs: 2, BlobBytes: 300, DeletedBlobs: 1, DeletedBytes: 200})
	s.want(t, gone, false, false)
	s.want(t, kept, true, true)
	want(s.round(t), Report{LiveRefs: 1, Refs: 1, Blobs: 1, BlobBytes: 100})
	for tomb, err := range s.records.Tombstones(t.Context(), storeName) {
		t.Errorf("left: %+v, %v", tomb, err)
	}
}

func TestContentThatComesBack(t *testing.T) {
	for _, moment := range []int{1, 2, 3} { // rounds before it is committed again
		t.Run(fmt.Sprintf("after round %d", moment), func(t *testing.T) {
			s := newSite(t)
			s.commit(t, "other", blob(1), true)
			gone := s.commit(t, "gone", blob(2), true)
			s.forget(gone)
			for range moment {
				s.wait()
				s.round(t)
			}
			back := s.commit(t, "back", blob(2), true)
			for range 3 {
				s.wait()
				s.round(t)
				s.want(t, back, true, true)
			}
		})
	}
}

func TestADeletionThatDiedIsFinished(t *testing.T) {
	s := newSite(t)
	s.commit(t, "other", blob(1), true)
	orphan := Pair{Digest: blob(2).Digest(), BundleUID: "nobody"}
	if _, err := blob(2).Put(t.Context(), s.store); err != nil {
		t.Fatal(err)
	}
	s.round(t)
	for tomb, err := range s.records.Tombstones(t.Context(), storeName) {
		if err != nil {
			t.Fatal(err)
		}
		if _, ok, err := s.records.StartDeleting(t.Context(), tomb); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	s.round(t) // another process may be at it
	if err := s.records.TryAdd(t.Context(), s.ref(orphan), "ns", "app"); !errors.Is(err, reference.ErrDeleting) {
		t.Errorf("while it may be going on: %v", err)
	}
	s.pass()
	s.round(t)
	s.want(t, orphan, false, true)
	s.wait()
	if report := s.round(t); report.DeletedBlobs != 1 {
		t.Errorf("report is %+v", report)
	}
	s.want(t, orphan, false, false)
}

// TestARemovalThatDiedEndsWhileCollectingIsHeld: nothing is removed then, and content can be stored all the same.
func TestARemovalThatDiedEndsWhileCollectingIsHeld(t *testing.T) {
	s := newSite(t)
	damaged := s.commit(t, "app", blob(1), true)
	if _, ok, err := s.records.StartRemoving(t.Context(), storeName, damaged.Digest); !ok || err != nil {
		t.Fatal(ok, err)
	}
	s.forget(damaged) // and all else that the state has named
	again := s.ref(Pair{BundleUID: "another", Digest: damaged.Digest})
	if _, err := s.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.records.TryAdd(t.Context(), again, "ns", "another"); err == nil {
		t.Fatal("a removal that may be going on was ended")
	}
	s.wait()
	if _, err := s.Collect(t.Context()); !errors.Is(err, ErrHeld) {
		t.Fatalf("got %v", err)
	}
	s.want(t, damaged, true, true)
	if err := s.records.TryAdd(t.Context(), again, "ns", "another"); err != nil {
		t.Error(err)
	}
}

func TestWhatTheStateNamesIsNeverDeleted(t *testing.T) {
	s := newSite(t)
	pair := s.commit(t, "app", blob(1), true)
	if err := s.records.Remove(t.Context(), s.ref(pair)); err != nil {
		t.Fatal(err)
	}
	if ok, err := s.records.Mark(t.Context(), storeName, pair.Digest); !ok || err != nil {
		t.Fatal(ok, err)
	}
	noBlob := s.commit(t, "no blob", blob(2), true)
	if err := s.store.Delete(t.Context(), noBlob.Digest); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.wait()
		report := s.round(t)
		if !slices.Equal(report.Missing, []Pair{noBlob}) || !slices.Equal(report.Unrecorded, []Pair{pair}) || !report.Looked {
			t.Errorf("missing are %v, and without a record %v", report.Missing, report.Unrecorded)
		}
	}
	s.want(t, pair, false, true)
	s.want(t, noBlob, true, false)
}

func TestAFailingStateStopsTheRound(t *testing.T) {
	s := newSite(t)
	pair := s.commit(t, "app", blob(1), false)
	s.wait()
	s.liveErr = errors.New("etcd is away")
	if report, err := s.Collect(t.Context()); !errors.Is(err, s.liveErr) || report.RemovedRefs != 0 {
		t.Errorf("got %+v, %v", report, err)
	}
	s.want(t, pair, true, true)
}

func TestALostStateIsHeld(t *testing.T) {
	for _, tc := range []struct {
		name         string
		total, named int // bundles with content, and those that are left
		records      bool
		held         bool
	}{
		{"all of one", 1, 0, true, true},
		{"all of ten", 10, 0, true, true},
		{"few of few", 4, 1, true, false},
		{"most of many", 10, 4, true, true},
		{"half of many", 10, 5, true, false},
		{"few blobs without records", 3, 0, false, false},
		{"most blobs without records", 10, 1, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSite(t)
			var pairs []Pair
			for i := range tc.total {
				pairs = append(pairs, s.commit(t, fmt.Sprint("uid-", i), blob(i+1), i < tc.named))
			}
			for _, pair := range pairs[tc.named:] {
				if tc.records {
					continue
				}
				if err := s.records.Remove(t.Context(), s.ref(pair)); err != nil {
					t.Fatal(err)
				}
			}
			s.wait()
			report, err := s.Collect(t.Context())
			if errors.Is(err, ErrHeld) != tc.held || (!tc.held && err != nil) {
				t.Fatalf("got %v", err)
			}
			if !tc.held {
				return
			}
			if report.RemovedRefs+report.Tombstoned > 0 {
				t.Errorf("a round that was held did %+v", report)
			}
			if gone := tc.total - tc.named; report.GarbageBlobs != gone || report.Blobs != tc.total {
				t.Errorf("a round that was held reports %+v", report)
			}
			s.now = s.now.Add(23 * time.Hour)
			if _, err := s.Collect(t.Context()); !errors.Is(err, ErrHeld) {
				t.Errorf("after 23 hours: %v", err)
			}
			s.now = s.now.Add(2 * time.Hour)
			report = s.round(t)
			if gone := tc.total - tc.named; report.Tombstoned != gone {
				t.Errorf("after a day: %+v, want %d tombstones", report, gone)
			}
		})
	}
}

func TestAStateThatIsBackEndsTheHold(t *testing.T) {
	s := newSite(t)
	pair := s.commit(t, "app", blob(1), true)
	for range 3 {
		s.forget(pair)
		s.now = s.now.Add(20 * time.Hour)
		if _, err := s.Collect(t.Context()); !errors.Is(err, ErrHeld) {
			t.Fatalf("got %v", err)
		}
		s.live[pair] = struct{}{}
		s.round(t)
	}
	s.want(t, pair, true, true)
}

// failingStore fails to delete.
type failingStore struct {
	content.Store
	err error
}

func (f *failingStore) Delete(context.Context, string) error { return f.err }

func TestAFailedDeletionIsTriedAgain(t *testing.T) {
	s := newSite(t)
	s.commit(t, "other", blob(1), true)
	var orphans []Pair
	for i := range 2 {
		orphans = append(orphans, s.commit(t, "gone", blob(2+i), false))
	}
	s.wait()
	s.round(t)
	s.wait()
	broken := &failingStore{Store: s.store, err: errors.New("disk is broken")}
	s.cfg.Store = broken
	report, err := s.Collect(t.Context())
	if err != nil || report.Failures != 2 || report.DeletedBlobs != 0 || !errors.Is(report.Errors[0], broken.err) {
		t.Errorf("got %+v, %v", report, err)
	}
	s.cfg.Store = s.store
	s.pass()
	s.round(t)
	s.wait()
	if report := s.round(t); report.DeletedBlobs != 2 {
		t.Errorf("got %+v", report)
	}
	for _, orphan := range orphans {
		s.want(t, orphan, false, false)
	}
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	good := newWorld().collector(direct, false).cfg
	for name, spoil := range map[string]func(*Config){
		"no store":        func(c *Config) { c.Store = nil },
		"no name":         func(c *Config) { c.StoreName = "" },
		"no grace period": func(c *Config) { c.Grace = 0 },
		"no hold":         func(c *Config) { c.Hold = 0 },
	} {
		cfg := good
		spoil(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := newWorld().collector(direct, false).cfg
		var at []time.Duration
		began := time.Now()
		cfg.Observe = func(_ Report, err error) {
			if err != nil {
				t.Error(err)
			}
			at = append(at, time.Since(began))
		}
		c, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx, 10*time.Minute) }()

		time.Sleep(15 * time.Minute) // of the fake clock: the second round has been, however early, and the third not
		synctest.Wait()
		if len(at) != 2 || at[0] > 2*time.Minute || at[1]-at[0] < 9*time.Minute || at[1]-at[0] > 11*time.Minute {
			t.Errorf("rounds came after %v", at)
		}
		c.Trigger()
		c.Trigger()
		synctest.Wait()
		if len(at) < 3 || at[2] != 15*time.Minute {
			t.Errorf("after a trigger, rounds came after %v", at)
		}
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})
}

// TestFakeIsLikeEtcd does the same with the fake of the model and with a real etcd.
func TestFakeIsLikeEtcd(t *testing.T) {
	now := func() time.Time { return start }
	fake := newWorld().records(direct, false)
	real := reference.New(etcdtest.Start(t).KV, prefix, now)
	random := rand.New(rand.NewPCG(1, 2))
	var seen [2][]reference.Tombstone
	var records [2][]reference.Record
	for i := range 2000 {
		action, pick := random.IntN(7), random.IntN(1000)
		var did [2]string
		for j, r := range []*reference.Records{fake, real} {
			did[j] = oneAction(t, r, action, pick, &seen[j], &records[j])
		}
		if did[0] != did[1] {
			t.Fatalf("action %d (%d): the fake says %q, etcd %q", i, action, did[0], did[1])
		}
	}
}

// oneAction does one thing and describes what came of it, revisions left out.
func oneAction(t *testing.T, r *reference.Records, action, pick int, tombs *[]reference.Tombstone, records *[]reference.Record) string {
	t.Helper()
	ctx := t.Context()
	name := fmt.Sprintf("sha256:%064d", pick%2)
	ref := reference.Ref{Store: storeName, Digest: name, BundleUID: fmt.Sprint("uid-", pick%3)}
	switch {
	case action == 0:
		return fmt.Sprint("add ", r.TryAdd(ctx, ref, "ns", "app"))
	case action == 1:
		has, err := r.Has(ctx, ref)
		return fmt.Sprint("has ", has, err)
	case action == 2:
		return fmt.Sprint("remove ", r.Remove(ctx, ref))
	case action == 3:
		ok, err := r.Mark(ctx, storeName, name)
		return fmt.Sprint("mark ", ok, err)
	case action == 4 && len(*tombs) > 0:
		tomb, ok, err := r.StartDeleting(ctx, (*tombs)[pick%len(*tombs)])
		if ok {
			*tombs = append(*tombs, tomb)
		}
		return fmt.Sprint("delete ", ok, err)
	case action == 5 && len(*tombs)+len(*records) > 0:
		var text strings.Builder
		if n := len(*tombs); n > 0 {
			ok, err := r.Unmark(ctx, (*tombs)[pick%n])
			fmt.Fprint(&text, ok, err)
		}
		if n := len(*records); n > 0 {
			ok, err := r.RemoveUnchanged(ctx, (*records)[pick%n])
			fmt.Fprint(&text, ok, err)
		}
		return text.String()
	}
	return listAll(t, r, tombs, records)
}

func listAll(t *testing.T, r *reference.Records, tombs *[]reference.Tombstone, records *[]reference.Record) string {
	t.Helper()
	var text strings.Builder
	*tombs, *records = nil, nil
	for tomb, err := range r.Tombstones(t.Context(), storeName) {
		*tombs = append(*tombs, tomb)
		tomb.ModRevision = 0
		fmt.Fprint(&text, tomb.Digest, tomb.State, tomb.Time, err)
	}
	for rec, err := range r.List(t.Context(), storeName) {
		*records = append(*records, rec)
		fmt.Fprint(&text, rec.Ref, rec.Name, rec.Time, err)
	}
	return text.String()
}
