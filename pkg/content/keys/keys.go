// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package keys walks through keys of etcd.
package keys

import (
	"context"
	"iter"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Get is that of a clientv3.KV, or one around it.
type Get func(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error)

// Under gives the keys that begin with a prefix, with their values, in order. They are read in pages of at most so
// many, each at its own revision unless the options name one: a revision could be compacted away in a long walk. So a
// key that is there for the whole walk is given, and one that comes or goes meanwhile may be or may not be. The first
// error ends the walk.
func Under(ctx context.Context, get Get, prefix string, page int64, opts ...clientv3.OpOption) iter.Seq2[*mvccpb.KeyValue, error] {
	return func(yield func(*mvccpb.KeyValue, error) bool) {
		from := prefix
		opts := append(slices.Clone(opts), clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(page))
		for {
			resp, err := get(ctx, from, opts...)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, kv := range resp.Kvs {
				if !yield(kv, nil) {
					return
				}
			}
			if !resp.More || len(resp.Kvs) == 0 {
				return
			}
			from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
		}
	}
}
