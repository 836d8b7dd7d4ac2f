// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// State is that of a tombstone.
type State string

const (
	// Pending: nobody refers to the content; Add removes the tombstone.
	Pending State = "pending"
	// Deleting: the content is being deleted, or was when that failed or its collector ended; Add waits.
	Deleting State = "deleting"
)

// Tombstone marks content that no record refers to.
type Tombstone struct {
	Store, Digest string
	State         State
	Time          time.Time // when it got into this state
	ModRevision   int64     // of the key
}

func (t Tombstone) String() string { return fmt.Sprintf("of %s in store %s", t.Digest, t.Store) }

// Mark writes a pending tombstone if the digest has neither records nor a
// tombstone, and says whether it did.
func (r *Records) Mark(ctx context.Context, store, digest string) (bool, error) {
	tomb := Tombstone{Store: store, Digest: digest, State: Pending}
	_, ok, err := r.putTombstone(ctx, tomb, clientv3.Compare(clientv3.CreateRevision(r.tombstoneKey(store, digest)), "=", 0))
	return ok, err
}

// StartDeleting moves a tombstone, pending or deleting, to the state deleting with
// the present time. That succeeds only if the tombstone did not change since it was
// read and the digest has no records; then it returns the new tombstone and true.
// The caller alone may delete the content then, and ends with Unmark.
func (r *Records) StartDeleting(ctx context.Context, tomb Tombstone) (Tombstone, bool, error) {
	unchanged := r.unchanged(tomb)
	tomb.State = Deleting
	return r.putTombstone(ctx, tomb, unchanged)
}

// TakeBack ends a deletion that came to nothing, because it failed or its process ended, without deleting anything: the
// tombstone becomes pending with the present time, or goes where the digest has records. It returns the pending one and true, or
// false where none stands, or somebody wrote it since it was read. The deletion must be over: content can be stored from now on.
func (r *Records) TakeBack(ctx context.Context, tomb Tombstone) (Tombstone, bool, error) {
	pending := tomb
	pending.State = Pending
	pending, ok, err := r.putTombstone(ctx, pending, r.unchanged(tomb))
	if err != nil || ok {
		return pending, ok, err
	}
	_, err = r.Unmark(ctx, tomb)
	return tomb, false, err
}

// unchanged holds while nobody writes the tombstone.
func (r *Records) unchanged(tomb Tombstone) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(r.tombstoneKey(tomb.Store, tomb.Digest)), "=", tomb.ModRevision)
}

// StartRemoving writes a tombstone in the state deleting although the digest may have records: its bytes were found to be
// damaged, and those who have it are to get them anew. It fails, with false, while another deletion is going on. The
// caller may delete the blob then, if it still is the one that was damaged, and ends with Unmark, in less time than the collector
// takes to take a deletion for one whose process has ended.
func (r *Records) StartRemoving(ctx context.Context, store, digest string) (Tombstone, bool, error) {
	tomb := Tombstone{Store: store, Digest: digest, State: Deleting}
	if err := checkRef(Ref{Store: store, Digest: digest, BundleUID: "any"}); err != nil {
		return tomb, false, fmt.Errorf("write tombstone: %w", err)
	}
	tomb.Time = r.now().UTC()
	value, err := json.Marshal(tombstoneValue{State: tomb.State, Time: tomb.Time})
	if err != nil {
		return tomb, false, fmt.Errorf("write tombstone %s: %w", tomb, err)
	}
	key := r.tombstoneKey(store, digest)
	for guard := clientv3.Compare(clientv3.CreateRevision(key), "=", 0); ; {
		resp, err := r.kv.Txn(ctx).If(guard).Then(clientv3.OpPut(key, string(value))).Else(clientv3.OpGet(key)).Commit()
		if err != nil {
			return tomb, false, fmt.Errorf("write tombstone %s: %w", tomb, err)
		}
		if resp.Succeeded {
			tomb.ModRevision = resp.Header.Revision
			return tomb, true, nil
		}
		kvs := resp.Responses[0].GetResponseRange().Kvs
		if len(kvs) == 0 { // it is gone since
			guard = clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
			continue
		}
		old, err := r.parseTombstone(store, digest, kvs[0])
		if err != nil || old.State == Deleting {
			return tomb, false, err
		}
		guard = clientv3.Compare(clientv3.ModRevision(key), "=", old.ModRevision)
	}
}

// putTombstone writes a tombstone with the present time if the guard holds and the
// digest has no records.
func (r *Records) putTombstone(ctx context.Context, tomb Tombstone, guard clientv3.Cmp) (Tombstone, bool, error) {
	prefix, err := r.digestPrefix(tomb.Store, tomb.Digest)
	if err != nil {
		return tomb, false, fmt.Errorf("write tombstone: %w", err)
	}
	tomb.Time = r.now().UTC()
	value, err := json.Marshal(tombstoneValue{State: tomb.State, Time: tomb.Time})
	if err != nil {
		return tomb, false, fmt.Errorf("write tombstone %s: %w", tomb, err)
	}
	// Compared over a range, every key of it must fit; none has the create revision 0 but one that is not there.
	noRecords := clientv3.Compare(clientv3.CreateRevision(prefix), "=", 0).WithPrefix()
	resp, err := r.kv.Txn(ctx).
		If(guard, noRecords).
		Then(clientv3.OpPut(r.tombstoneKey(tomb.Store, tomb.Digest), string(value))).
		Commit()
	if err != nil {
		return tomb, false, fmt.Errorf("write tombstone %s: %w", tomb, err)
	}
	tomb.ModRevision = resp.Header.Revision
	return tomb, resp.Succeeded, nil
}

// Unmark removes a tombstone if nobody wrote it since, and says whether it did.
func (r *Records) Unmark(ctx context.Context, tomb Tombstone) (bool, error) {
	resp, err := r.kv.Txn(ctx).
		If(r.unchanged(tomb)).
		Then(clientv3.OpDelete(r.tombstoneKey(tomb.Store, tomb.Digest))).
		Commit()
	if err != nil {
		return false, fmt.Errorf("remove tombstone %s: %w", tomb, err)
	}
	return resp.Succeeded, nil
}

// Tombstones gives the tombstones of a store, ordered by digest, as List does.
func (r *Records) Tombstones(ctx context.Context, store string) iter.Seq2[Tombstone, error] {
	return func(yield func(Tombstone, error) bool) {
		prefix, err := r.storePrefix(tombstones, store)
		if err != nil {
			yield(Tombstone{}, fmt.Errorf("list tombstones: %w", err))
			return
		}
		for kv, err := range r.pages(ctx, prefix) {
			var tomb Tombstone
			if err == nil {
				tomb, err = r.parseTombstone(store, strings.TrimPrefix(string(kv.Key), prefix), kv)
			}
			if err != nil {
				yield(Tombstone{}, fmt.Errorf("list tombstones of store %s: %w", store, err))
				return
			}
			if !yield(tomb, nil) {
				return
			}
		}
	}
}
