// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcdstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Sweep ends the uploads that reserved nothing more for so long, returns their space, and counts
// the bytes in use anew.
func (s *Store) Sweep(ctx context.Context, olderThan time.Duration) error {
	prefix := s.join(uploads) + "/"
	before := time.Now().Add(-olderThan)
	for kv, err := range s.pages(ctx, prefix) {
		if err != nil {
			return fmt.Errorf("sweep content: %w", err)
		}
		id := strings.TrimPrefix(string(kv.Key), prefix)
		if err := s.drop(ctx, id, func(r reservation) bool { return r.Time.After(before) }); err != nil {
			return fmt.Errorf("sweep content: upload %s: %w", id, err)
		}
	}
	if err := s.recount(ctx); err != nil {
		return fmt.Errorf("sweep content: %w", err)
	}
	return nil
}

// recount sets the bytes in use to what they were at one revision, unless they changed since. Whatever does
// not change them meanwhile only deletes, so they are never too few.
func (s *Store) recount(ctx context.Context) error {
	resp, err := s.get(ctx, s.join(used))
	if err != nil || len(resp.Kvs) == 0 {
		return err
	}
	have, err := parseUsed(resp.Kvs[0])
	if err != nil {
		return err
	}
	want, err := s.count(ctx, resp.Header.Revision)
	if err != nil || want == have {
		return err
	}
	same := clientv3.Compare(clientv3.ModRevision(s.join(used)), "=", resp.Kvs[0].ModRevision)
	put := clientv3.OpPut(s.join(used), strconv.FormatInt(want, 10))
	return s.repeat(ctx, func(ctx context.Context) (bool, error) {
		_, err := s.kv.Txn(ctx).If(same).Then(put).Commit()
		return true, err
	})
}

// count adds the bytes of all manifests and reservations at a revision.
func (s *Store) count(ctx context.Context, revision int64) (int64, error) {
	var total int64
	for folder, size := range map[string]func(*mvccpb.KeyValue) (int64, error){
		blobs: manifestSize, indexes: manifestSize, uploads: reservedSize,
	} {
		for kv, err := range s.pages(ctx, s.join(folder)+"/", clientv3.WithRev(revision)) {
			if err != nil {
				return 0, err
			}
			n, err := size(kv)
			if err != nil {
				return 0, err
			}
			total += n
		}
	}
	return total, nil
}

func manifestSize(kv *mvccpb.KeyValue) (int64, error) {
	m, err := parseManifest(kv)
	if err != nil {
		return 0, err
	}
	return m.Size, nil
}

func reservedSize(kv *mvccpb.KeyValue) (int64, error) {
	var r reservation
	err := parse(kv, &r)
	return r.Bytes, err
}
