// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/etcdtest"
)

const store = "default"

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func digest(n int) string { return fmt.Sprintf("sha256:%064x", n) }

func ref(n int, uid string) Ref { return Ref{Store: store, Digest: digest(n), BundleUID: uid} }

// start gives records in an etcd of their own, and a neighbour of each key that must never be touched.
func start(t *testing.T) (*Records, *clientv3.Client) {
	t.Helper()
	client := etcdtest.Start(t)
	r := New(client.KV, "/test/content/", func() time.Time { return noon })
	neighbours := New(client.KV, "/test/content2", time.Now)
	others := []Ref{{Store: store + "2", Digest: digest(1), BundleUID: "a"}, ref(0, "a")}
	for _, other := range others {
		owner := r
		if other.Store == store {
			owner = neighbours
		}
		must(t, owner.Add(t.Context(), other, "ns", "neighbour"))
		t.Cleanup(func() {
			if has, err := owner.Has(context.Background(), other); err != nil || !has {
				t.Errorf("the neighbour %s is gone, %v", other, err)
			}
		})
	}
	return r, client
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func list(t *testing.T, r *Records) []Record {
	t.Helper()
	var all []Record
	for rec, err := range r.List(t.Context(), store) {
		must(t, err)
		all = append(all, rec)
	}
	return all
}

func tombs(t *testing.T, r *Records) []Tombstone {
	t.Helper()
	var all []Tombstone
	for tomb, err := range r.Tombstones(t.Context(), store) {
		must(t, err)
		all = append(all, tomb)
	}
	return all
}

func wantHas(t *testing.T, r *Records, ref Ref, want bool) {
	t.Helper()
	if got, err := r.Has(t.Context(), ref); err != nil || got != want {
		t.Errorf("has %s: %v, %v, want %v", ref, got, err, want)
	}
}

func TestAddHasRemove(t *testing.T) {
	r, client := start(t)
	ctx := t.Context()
	wantHas(t, r, ref(1, "a"), false)
	must(t, r.Add(ctx, ref(1, "a"), "team-a", "app"))
	wantHas(t, r, ref(1, "a"), true)
	for _, other := range []Ref{ref(1, "b"), ref(2, "a"), ref(1, ""), {Store: "other", Digest: digest(1), BundleUID: "a"}} {
		if has, _ := r.Has(ctx, other); has {
			t.Errorf("has %s, which nobody added", other)
		}
	}
	resp, err := client.Get(ctx, "/test/content/refs/default/"+digest(1)+"/a")
	must(t, err)
	if len(resp.Kvs) != 1 || string(resp.Kvs[0].Value) != `{"namespace":"team-a","name":"app","time":"2026-01-02T12:00:00Z"}` {
		t.Errorf("etcd has %v", resp.Kvs)
	}
	for range 2 {
		must(t, r.Remove(ctx, ref(1, "a")))
		wantHas(t, r, ref(1, "a"), false)
	}
}

func TestInvalidRefs(t *testing.T) {
	r := New(nil, "/test", time.Now) // nothing may reach etcd
	ctx := t.Context()
	for _, tc := range []struct {
		ref  Ref
		want error
	}{
		{Ref{Store: "", Digest: digest(1), BundleUID: "a"}, ErrInvalidRef},
		{Ref{Store: "a/b", Digest: digest(1), BundleUID: "a"}, ErrInvalidRef},
		{Ref{Store: store, Digest: digest(1), BundleUID: ""}, ErrInvalidRef},
		{Ref{Store: store, Digest: digest(1), BundleUID: "a/b"}, ErrInvalidRef},
		{Ref{Store: store, Digest: "", BundleUID: "a"}, content.ErrInvalidDigest},
		{Ref{Store: store, Digest: "sha256:../x", BundleUID: "a"}, content.ErrInvalidDigest},
	} {
		_, has := r.Has(ctx, tc.ref)
		_, removed := r.RemoveUnchanged(ctx, Record{Ref: tc.ref})
		for call, err := range map[string]error{"add": r.Add(ctx, tc.ref, "", ""), "has": has, "remove": r.Remove(ctx, tc.ref), "remove unchanged": removed} {
			if !errors.Is(err, tc.want) {
				t.Errorf("%s %+v: %v, want %v", call, tc.ref, err, tc.want)
			}
		}
	}
	if _, err := r.Mark(ctx, store, "sha256:"); !errors.Is(err, content.ErrInvalidDigest) {
		t.Errorf("mark: %v", err)
	}
	for _, err := range r.List(ctx, "") {
		if !errors.Is(err, ErrInvalidRef) {
			t.Errorf("list: %v", err)
		}
	}
}

func TestListInPages(t *testing.T) {
	r, _ := start(t)
	r.page = 3
	for _, count := range []int{0, 1, 2, 3, 4, 6, 7} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			for i := len(list(t, r)); i < count; i++ {
				must(t, r.Add(t.Context(), ref(i/2+1, fmt.Sprintf("uid-%d", i)), "ns", fmt.Sprint(i)))
			}
			got := list(t, r)
			if len(got) != count {
				t.Fatalf("listed %d of %d", len(got), count)
			}
			for i, rec := range got {
				if rec.Ref != ref(i/2+1, fmt.Sprintf("uid-%d", i)) || rec.Name != fmt.Sprint(i) || !rec.Time.Equal(noon) || rec.ModRevision == 0 {
					t.Errorf("record %d is %+v", i, rec)
				}
			}
			for rec, err := range r.List(t.Context(), store) { // a consumer may stop
				if err != nil || rec.Ref != got[0].Ref {
					t.Errorf("%v, %v", rec, err)
				}
				break
			}
		})
	}
}

func TestListStopsAtWhatItCannotRead(t *testing.T) {
	for _, key := range []string{"refs/default/sha256:12/a", "refs/default/" + digest(1), "refs/default/" + digest(1) + "/a/b"} {
		t.Run(key, func(t *testing.T) {
			r, client := start(t)
			_, err := client.Put(t.Context(), "/test/content/"+key, "{}")
			must(t, err)
			wantListError(t, r)
		})
	}
	t.Run("value", func(t *testing.T) {
		r, client := start(t)
		_, err := client.Put(t.Context(), "/test/content/refs/default/"+digest(1)+"/a", "{")
		must(t, err)
		wantListError(t, r)
	})
}

func wantListError(t *testing.T, r *Records) {
	t.Helper()
	var errs []error
	for _, err := range r.List(t.Context(), store) {
		errs = append(errs, err)
	}
	if len(errs) != 1 || errs[0] == nil {
		t.Errorf("listing gave %v", errs)
	}
}

func TestRemoveUnchangedLosesAgainstAdd(t *testing.T) {
	r, _ := start(t)
	must(t, r.Add(t.Context(), ref(1, "a"), "ns", "app"))
	seen := list(t, r)[0]
	must(t, r.Add(t.Context(), ref(1, "a"), "ns", "app"))
	if ok, err := r.RemoveUnchanged(t.Context(), seen); ok || err != nil {
		t.Errorf("removed a record that was added again: %v, %v", ok, err)
	}
	wantHas(t, r, ref(1, "a"), true)
	if ok, err := r.RemoveUnchanged(t.Context(), list(t, r)[0]); !ok || err != nil {
		t.Errorf("did not remove: %v, %v", ok, err)
	}
	wantHas(t, r, ref(1, "a"), false)
}

func TestTombstones(t *testing.T) {
	r, _ := start(t)
	ctx := t.Context()
	must(t, r.Add(ctx, ref(1, "a"), "ns", "app"))
	mark := func(n int, want bool) {
		t.Helper()
		if ok, err := r.Mark(ctx, store, digest(n)); err != nil || ok != want {
			t.Fatalf("mark %d: %v, %v, want %v", n, ok, err, want)
		}
	}
	mark(1, false) // it has a record
	mark(2, true)
	mark(2, false) // it has a tombstone
	pending := tombs(t, r)
	if len(pending) != 1 || pending[0].State != Pending || pending[0].Digest != digest(2) || !pending[0].Time.Equal(noon) {
		t.Fatalf("tombstones are %+v", pending)
	}

	deleting, ok, err := r.StartDeleting(ctx, pending[0])
	if err != nil || !ok || deleting != tombs(t, r)[0] || deleting.State != Deleting {
		t.Fatalf("start deleting: %+v, %v, %v", deleting, ok, err)
	}
	if _, ok, err := r.StartDeleting(ctx, pending[0]); ok || err != nil {
		t.Errorf("two collectors delete the same: %v, %v", ok, err)
	}
	if err := r.TryAdd(ctx, ref(2, "a"), "ns", "app"); !errors.Is(err, ErrDeleting) {
		t.Errorf("add while it is deleted: %v", err)
	}
	wantHas(t, r, ref(2, "a"), false)
	taken, ok, err := r.StartDeleting(ctx, deleting)
	if err != nil || !ok {
		t.Fatalf("take over: %v, %v", ok, err)
	}
	if ok, err := r.Unmark(ctx, deleting); ok || err != nil {
		t.Errorf("the one it was taken from removed it: %v, %v", ok, err)
	}
	if ok, err := r.Unmark(ctx, taken); !ok || err != nil {
		t.Errorf("unmark: %v, %v", ok, err)
	}
	if left := tombs(t, r); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}

func TestAddTakesAPendingTombstoneAway(t *testing.T) {
	r, _ := start(t)
	ctx := t.Context()
	if ok, err := r.Mark(ctx, store, digest(1)); !ok || err != nil {
		t.Fatal(ok, err)
	}
	pending := tombs(t, r)[0]
	must(t, r.TryAdd(ctx, ref(1, "a"), "ns", "app"))
	wantHas(t, r, ref(1, "a"), true)
	if left := tombs(t, r); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
	if _, ok, err := r.StartDeleting(ctx, pending); ok || err != nil {
		t.Errorf("deletes what was added: %v, %v", ok, err)
	}
	// The same tombstone again, as if nothing had happened between: still the record forbids it.
	must(t, r.Remove(ctx, ref(1, "a")))
	if ok, err := r.Mark(ctx, store, digest(1)); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if _, ok, err := r.StartDeleting(ctx, pending); ok || err != nil {
		t.Errorf("a tombstone of another time was taken for this one: %v, %v", ok, err)
	}
}

func TestAddWaitsForTheEndOfADeletion(t *testing.T) {
	r, _ := start(t)
	deleting := startDeleting(t, r, 1)
	asked := make(chan struct{}, 1000)
	r.kv = &watchedKV{KV: r.kv, asked: asked}
	result := make(chan error, 1)
	go func() { result <- r.Add(t.Context(), ref(1, "a"), "ns", "app") }()
	for range 3 { // it asked, was refused, and asked again
		<-asked
	}
	select {
	case err := <-result:
		t.Fatalf("add ended while it is deleted: %v", err)
	default:
	}
	if ok, err := r.Unmark(t.Context(), deleting); !ok || err != nil {
		t.Fatal(ok, err)
	}
	must(t, <-result)
	wantHas(t, r, ref(1, "a"), true)
}

func TestAddGivesUpWithItsContext(t *testing.T) {
	r, _ := start(t)
	startDeleting(t, r, 1)
	asked := make(chan struct{}, 1000)
	r.kv = &watchedKV{KV: r.kv, asked: asked}
	ctx, cancel := context.WithCancelCause(t.Context())
	result := make(chan error, 1)
	go func() { result <- r.Add(ctx, ref(1, "a"), "ns", "app") }()
	<-asked
	<-asked
	cancel(context.DeadlineExceeded)
	// It may be in a request or in a pause; only the latter knows of the deletion.
	if err := <-result; !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	wantHas(t, New(r.kv, "/test/content", time.Now), ref(1, "a"), false)
}

func startDeleting(t *testing.T, r *Records, n int) Tombstone {
	t.Helper()
	if ok, err := r.Mark(t.Context(), store, digest(n)); !ok || err != nil {
		t.Fatal(ok, err)
	}
	tomb, ok, err := r.StartDeleting(t.Context(), tombs(t, r)[0])
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	return tomb
}

// watchedKV says each transaction that begins.
type watchedKV struct {
	clientv3.KV
	asked chan struct{}
}

func (w *watchedKV) Txn(ctx context.Context) clientv3.Txn {
	w.asked <- struct{}{}
	return w.KV.Txn(ctx)
}

// TestRecordsAndTombstonesExclude lets adders, removers and a deleter meet on one digest: a digest that has
// records never has a tombstone, and nobody adds while the deleter deletes.
func TestRecordsAndTombstonesExclude(t *testing.T) {
	r, client := start(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var group sync.WaitGroup
	for i := range 4 {
		uid := fmt.Sprintf("uid-%d", i)
		group.Go(func() {
			for range 40 {
				must2(t, r.Add(ctx, ref(1, uid), "ns", "app"))
				wantHas(t, r, ref(1, uid), true)
				must2(t, r.Remove(ctx, ref(1, uid)))
			}
		})
	}
	group.Go(func() {
		for range 40 {
			if err := deleteOnce(ctx, r, client); err != nil {
				t.Error(err)
			}
		}
	})
	group.Wait()
	if left := list(t, r); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}

func must2(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err) // not Fatal: another goroutine than the test's
	}
}

func deleteOnce(ctx context.Context, r *Records, client *clientv3.Client) error {
	if _, err := r.Mark(ctx, store, digest(1)); err != nil {
		return err
	}
	for tomb, err := range r.Tombstones(ctx, store) {
		if err != nil {
			return err
		}
		tomb, ok, err := r.StartDeleting(ctx, tomb)
		if err != nil || !ok {
			return err
		}
		resp, err := client.Get(ctx, "/test/content/", clientv3.WithPrefix())
		if err != nil {
			return err
		}
		if slices.ContainsFunc(resp.Kvs, func(kv *mvccpb.KeyValue) bool { return strings.Contains(string(kv.Key), "/refs/default/") }) {
			return fmt.Errorf("a record beside a tombstone: %v", resp.Kvs)
		}
		if ok, err := r.Unmark(ctx, tomb); err != nil || !ok {
			return fmt.Errorf("unmark: %v, %w", ok, err)
		}
	}
	return nil
}
