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

	"go.etcd.io/etcd/api/v3/mvccpb"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/keys"
)

// Folders below the prefix.
const (
	refs       = "refs"
	tombstones = "tombstones"
)

type recordValue struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Time      time.Time `json:"time"`
}

type tombstoneValue struct {
	State State     `json:"state"`
	Time  time.Time `json:"time"`
}

func (r *Records) refKey(ref Ref) (string, error) {
	if err := checkRef(ref); err != nil {
		return "", err
	}
	return r.join(refs, ref.Store, ref.Digest, ref.BundleUID), nil
}

// digestPrefix is that of the records of one digest.
func (r *Records) digestPrefix(store, digest string) (string, error) {
	if err := checkRef(Ref{Store: store, Digest: digest, BundleUID: "any"}); err != nil {
		return "", err
	}
	return r.join(refs, store, digest) + "/", nil
}

func (r *Records) storePrefix(folder, store string) (string, error) {
	if store == "" || strings.Contains(store, "/") {
		return "", fmt.Errorf("%w: store %q", ErrInvalidRef, store)
	}
	return r.join(folder, store) + "/", nil
}

// tombstoneKey is only used with a store and a digest that were checked, or read from etcd.
func (r *Records) tombstoneKey(store, digest string) string {
	return r.join(tombstones, store, digest)
}

func (r *Records) join(parts ...string) string {
	return r.prefix + "/" + strings.Join(parts, "/")
}

// pages gives the keys under a prefix.
func (r *Records) pages(ctx context.Context, prefix string) iter.Seq2[*mvccpb.KeyValue, error] {
	return keys.Under(ctx, r.kv.Get, prefix, r.page)
}

// parseRecord reads a record whose key ends in DIGEST/BUNDLEUID.
func (r *Records) parseRecord(store, rest string, kv *mvccpb.KeyValue) (Record, error) {
	digest, uid, _ := strings.Cut(rest, "/")
	rec := Record{Ref: Ref{Store: store, Digest: digest, BundleUID: uid}, ModRevision: kv.ModRevision}
	if err := checkRef(rec.Ref); err != nil {
		return Record{}, fmt.Errorf("key %q: %w", kv.Key, err)
	}
	var value recordValue
	if err := json.Unmarshal(kv.Value, &value); err != nil {
		return Record{}, fmt.Errorf("key %q: %w", kv.Key, err)
	}
	rec.Namespace, rec.Name, rec.Time = value.Namespace, value.Name, value.Time
	return rec, nil
}

func (r *Records) parseTombstone(store, digest string, kv *mvccpb.KeyValue) (Tombstone, error) {
	if _, err := content.ParseDigest(digest); err != nil {
		return Tombstone{}, fmt.Errorf("key %q: %w", kv.Key, err)
	}
	var value tombstoneValue
	if err := json.Unmarshal(kv.Value, &value); err != nil {
		return Tombstone{}, fmt.Errorf("key %q: %w", kv.Key, err)
	}
	if value.State != Pending && value.State != Deleting {
		return Tombstone{}, fmt.Errorf("key %q: unknown state %q", kv.Key, value.State)
	}
	return Tombstone{Store: store, Digest: digest, State: value.State, Time: value.Time, ModRevision: kv.ModRevision}, nil
}
