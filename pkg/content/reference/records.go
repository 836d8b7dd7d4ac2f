// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/failpoint"
)

// Errors of this package, to be found with errors.Is.
var (
	// ErrDeleting means that the content is being deleted at this moment and cannot be
	// referred to until that is done.
	ErrDeleting = errors.New("content is being deleted")

	// ErrInvalidRef means that a Ref cannot be a key: an empty part, or one with a slash.
	ErrInvalidRef = errors.New("invalid reference")
)

// Ref says that a bundle has content.
type Ref struct {
	Store     string // name of the content store
	Digest    string // sha256:HEX
	BundleUID string // never used again for another bundle
}

func (r Ref) String() string {
	return fmt.Sprintf("of bundle %s to %s in store %s", r.BundleUID, r.Digest, r.Store)
}

// Record is a Ref as it stands in etcd.
type Record struct {
	Ref
	Namespace, Name string    // of the bundle, for people
	Time            time.Time // of the last Add or Renew
	ModRevision     int64     // of the key
}

// Records are the records and tombstones under one prefix. It is safe for use by
// many goroutines, and by many processes.
type Records struct {
	kv     clientv3.KV
	prefix string
	now    func() time.Time
	page   int64
}

// pageSize is how many keys one request lists: about 100 KiB of answer.
const pageSize = 500

// New returns the records under prefix, which is an absolute path with or without
// a final slash; nothing else may write below its folders refs and tombstones. Of kv it uses Get and Txn.
func New(kv clientv3.KV, prefix string, now func() time.Time) *Records {
	return &Records{kv: kv, prefix: strings.TrimSuffix(prefix, "/"), now: now, page: pageSize}
}

// Add writes a record, or renews the time of one that exists. A pending tombstone
// of the digest is removed in the same transaction. While the digest is being
// deleted Add waits for at most 45 s, and asks again with growing pauses of at most
// a second; the error then is ErrDeleting, and that of ctx as well if ctx ended before.
//
// After an error the record may have been written.
func (r *Records) Add(ctx context.Context, ref Ref, namespace, name string) error {
	return r.untilDeleted(ctx, func() error { return r.TryAdd(ctx, ref, namespace, name) })
}

// TryAdd is Add without waiting: it returns ErrDeleting at once.
func (r *Records) TryAdd(ctx context.Context, ref Ref, namespace, name string) error {
	key, err := r.refKey(ref)
	if err != nil {
		return fmt.Errorf("add reference: %w", err)
	}
	value, err := json.Marshal(recordValue{Namespace: namespace, Name: name, Time: r.now().UTC()})
	if err != nil {
		return fmt.Errorf("add reference %s: %w", ref, err)
	}
	if err := r.putWithoutTombstone(ctx, ref, clientv3.OpPut(key, string(value))); err != nil {
		return fmt.Errorf("add reference %s: %w", ref, err)
	}
	failpoint.Hit("reference/after-add")
	return nil
}

// putWithoutTombstone does put once no tombstone stands, or in place of a pending one.
func (r *Records) putWithoutTombstone(ctx context.Context, ref Ref, put clientv3.Op) error {
	tombKey := r.tombstoneKey(ref.Store, ref.Digest)
	guard, ops := clientv3.Compare(clientv3.CreateRevision(tombKey), "=", 0), []clientv3.Op{put}
	for {
		resp, err := r.kv.Txn(ctx).If(guard).Then(ops...).Else(clientv3.OpGet(tombKey)).Commit()
		if err != nil {
			return err
		}
		if resp.Succeeded {
			return nil
		}
		kvs := resp.Responses[0].GetResponseRange().Kvs
		if len(kvs) == 0 { // the pending one that was seen before is gone
			guard, ops = clientv3.Compare(clientv3.CreateRevision(tombKey), "=", 0), []clientv3.Op{put}
			continue
		}
		tomb, err := r.parseTombstone(ref.Store, ref.Digest, kvs[0])
		if err != nil {
			return err
		}
		if tomb.State != Pending {
			return ErrDeleting
		}
		guard = clientv3.Compare(clientv3.ModRevision(tombKey), "=", tomb.ModRevision)
		ops = []clientv3.Op{clientv3.OpDelete(tombKey), put}
	}
}

// Has says whether a record exists. It is one read of one key, and never stale.
func (r *Records) Has(ctx context.Context, ref Ref) (bool, error) {
	key, err := r.refKey(ref)
	if err != nil {
		return false, fmt.Errorf("look up reference: %w", err)
	}
	resp, err := r.kv.Get(ctx, key, clientv3.WithCountOnly())
	if err != nil {
		return false, fmt.Errorf("look up reference %s: %w", ref, err)
	}
	return resp.Count > 0, nil
}

// Stores names the stores that any record is of, in order: one read for each.
func (r *Records) Stores(ctx context.Context) ([]string, error) {
	var stores []string
	prefix := r.join(refs) + "/"
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for {
		resp, err := r.kv.Get(ctx, from, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(1))
		if err != nil {
			return nil, fmt.Errorf("list the stores of references: %w", err)
		}
		if len(resp.Kvs) == 0 {
			return stores, nil
		}
		store, _, _ := strings.Cut(strings.TrimPrefix(string(resp.Kvs[0].Key), prefix), "/")
		stores = append(stores, store)
		from = clientv3.GetPrefixRangeEnd(prefix + store + "/")
	}
}

// Remove removes the record of a bundle that is gone. It is no error if there is none.
func (r *Records) Remove(ctx context.Context, ref Ref) error {
	key, err := r.refKey(ref)
	if err != nil {
		return fmt.Errorf("remove reference: %w", err)
	}
	if _, err := r.kv.Txn(ctx).Then(clientv3.OpDelete(key)).Commit(); err != nil {
		return fmt.Errorf("remove reference %s: %w", ref, err)
	}
	return nil
}

// Renew gives a record the present time if nobody wrote it since it was listed, and says whether it did. It is for
// records whose time cannot be right.
func (r *Records) Renew(ctx context.Context, rec Record) (bool, error) {
	key, err := r.refKey(rec.Ref)
	if err != nil {
		return false, fmt.Errorf("renew reference: %w", err)
	}
	value, err := json.Marshal(recordValue{Namespace: rec.Namespace, Name: rec.Name, Time: r.now().UTC()})
	if err != nil {
		return false, fmt.Errorf("renew reference %s: %w", rec.Ref, err)
	}
	resp, err := r.kv.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", rec.ModRevision)).
		Then(clientv3.OpPut(key, string(value))).
		Commit()
	if err != nil {
		return false, fmt.Errorf("renew reference %s: %w", rec.Ref, err)
	}
	return resp.Succeeded, nil
}

// RemoveUnchanged removes a record if nobody wrote it since it was listed, and
// says whether it did.
func (r *Records) RemoveUnchanged(ctx context.Context, rec Record) (bool, error) {
	key, err := r.refKey(rec.Ref)
	if err != nil {
		return false, fmt.Errorf("remove reference: %w", err)
	}
	resp, err := r.kv.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", rec.ModRevision)).
		Then(clientv3.OpDelete(key)).
		Commit()
	if err != nil {
		return false, fmt.Errorf("remove reference %s: %w", rec.Ref, err)
	}
	return resp.Succeeded, nil
}

// List gives the records of a store, ordered by digest and bundle UID, read in
// pages. A record that exists for the whole listing is in it; one that comes or
// goes meanwhile may be or may not be. The first error ends the listing.
func (r *Records) List(ctx context.Context, store string) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		prefix, err := r.storePrefix(refs, store)
		if err != nil {
			yield(Record{}, fmt.Errorf("list references: %w", err))
			return
		}
		for kv, err := range r.pages(ctx, prefix) {
			var rec Record
			if err == nil {
				rec, err = r.parseRecord(store, strings.TrimPrefix(string(kv.Key), prefix), kv)
			}
			if err != nil {
				yield(Record{}, fmt.Errorf("list references of store %s: %w", store, err))
				return
			}
			if !yield(rec, nil) {
				return
			}
		}
	}
}

// checkRef says whether a Ref can be a key.
func checkRef(ref Ref) error {
	if _, err := content.ParseDigest(ref.Digest); err != nil {
		return err
	}
	for _, part := range []string{ref.Store, ref.BundleUID} {
		if part == "" || strings.Contains(part, "/") {
			return fmt.Errorf("%w %s", ErrInvalidRef, ref)
		}
	}
	return nil
}
