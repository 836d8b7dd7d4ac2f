// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package etcdstore keeps content in etcd: small content for several replicas where
// there is no object store.
//
//	PREFIX/blobs/HEX          a manifest: which upload holds the bytes of the blob, and how many
//	PREFIX/indexes/HEX        a manifest: the same for the index of the blob
//	PREFIX/chunks/ID/NUMBER   the bytes of an upload, in pieces of ChunkSize
//	PREFIX/uploads/ID         a writer at work: the space that it reserved, and when
//	PREFIX/used               the bytes of all manifests and the reservations of all uploads
//	PREFIX/mark               the mark of the store
//
// HEX is the digest, ID is random, NUMBER counts from 0 in eight hexadecimal digits.
//
// Each step is one transaction that says on what it relies, so the keys agree with each
// other at every revision, whichever process dies when: a chunk is written only while its
// upload is there; the transaction that makes a manifest visible ends the upload, settles its
// reservation, and removes the chunks of the manifest it replaces; the one that removes a
// manifest removes its chunks. An upload whose writer died keeps its chunks and its space until
// Sweep, and a writer that Sweep took for dead fails. A blob of one chunk at most is
// stored in one transaction and has no upload.
//
// A reader reads at the revision at which it was opened, so that neither a deletion nor
// another commit of the digest reaches it. When that revision is compacted away (the API
// server of this program has etcd compacted every five minutes) it goes on with the blob of
// the same digest that is there now; only if there is none, the reading fails.
package etcdstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/keys"
	"rukpak.io/apiserver/pkg/failpoint"
)

const (
	// ChunkSize is how many bytes one key holds. A request of etcd is at most 1.5 MiB.
	ChunkSize = 1 << 20
	// DefaultCapacity suits the default quota of etcd, which is 2 GiB.
	DefaultCapacity = 1 << 30

	pageSize = 500
	// remember is how long a full etcd is taken to be full without a further try.
	remember = 30 * time.Second
)

// Store is a content.Store in etcd.
type Store struct {
	kv       clientv3.KV
	prefix   string
	capacity int64
	patience time.Duration // from the first request that failed to the last that is tried
	chunks   *shelf        // of all readers
	fullAt   atomic.Int64  // when etcd last said that its quota is used up, Unix nanoseconds
}

var _ content.Store = (*Store)(nil)

// New returns the store that keeps at most capacity bytes of content under a prefix of
// etcd, and nothing else stands there. Every process that uses the prefix gives the same capacity,
// which should be well below the quota of etcd: a replaced or removed chunk takes space until
// etcd was compacted. The caller keeps the client of kv alive for as long as the store is used.
func New(kv clientv3.KV, prefix string, capacity int64) *Store {
	return &Store{kv: kv, prefix: strings.TrimSuffix(prefix, "/"), capacity: capacity, patience: patience, chunks: newShelf()}
}

// Create begins a blob.
func (s *Store) Create(ctx context.Context) (content.Writer, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("create content: %w", err)
	}
	return newWriter(ctx, s), nil
}

// Open returns a reader that reads a chunk at a time; all readers of the store together keep no more than 64 of them in
// memory. One that reads the whole blob checks
// the digest of what it read, and ends in content.ErrDigestMismatch if it is another.
func (s *Store) Open(ctx context.Context, digest string, offset, length int64) (io.ReadCloser, error) {
	key, err := s.key(ctx, blobs, digest)
	if err != nil {
		return nil, fmt.Errorf("open content: %w", err)
	}
	r, err := s.open(ctx, key, offset, length)
	if err != nil {
		return nil, fmt.Errorf("open content %s: %w", digest, err)
	}
	if offset == 0 && r.end == r.manifest.Size {
		return newChecked(r, digest), nil
	}
	return r, nil
}

// Stat describes a blob.
func (s *Store) Stat(ctx context.Context, digest string) (content.Info, error) {
	key, err := s.key(ctx, blobs, digest)
	if err != nil {
		return content.Info{}, fmt.Errorf("stat content: %w", err)
	}
	m, _, err := s.manifest(ctx, key)
	if err != nil {
		return content.Info{}, fmt.Errorf("stat content %s: %w", digest, err)
	}
	return content.Info{Digest: digest, Size: m.Size, ModTime: m.Time}, nil
}

// Delete removes a blob and its index.
func (s *Store) Delete(ctx context.Context, digest string) error {
	if err := s.delete(ctx, digest); err != nil {
		return fmt.Errorf("delete content %s: %w", digest, err)
	}
	return nil
}

func (s *Store) delete(ctx context.Context, digest string) error {
	blobKey, err := s.key(ctx, blobs, digest)
	if err != nil {
		return err
	}
	indexKey, err := s.key(ctx, indexes, digest)
	if err != nil {
		return err
	}
	err = s.free(ctx, []string{blobKey, indexKey}, func(have snapshot) (ops []clientv3.Op, freed int64, err error) {
		for _, key := range []string{blobKey, indexKey} {
			m, err := have.manifest(key)
			if err != nil {
				return nil, 0, err
			}
			if m == nil {
				continue
			}
			freed += m.Size
			ops = append(ops, clientv3.OpDelete(key), s.deleteChunks(m.Upload))
		}
		return ops, freed, nil
	})
	if err == nil {
		failpoint.Hit("etcdstore/after-delete")
	}
	return err
}

// Walk calls fn for each blob, ordered by digest.
func (s *Store) Walk(ctx context.Context, fn func(content.Info) error) error {
	prefix := s.join(blobs) + "/"
	for kv, err := range s.pages(ctx, prefix) {
		if err != nil {
			return fmt.Errorf("walk content: %w", err)
		}
		digest := content.Algorithm + ":" + strings.TrimPrefix(string(kv.Key), prefix)
		if _, err := content.ParseDigest(digest); err != nil {
			continue // not ours
		}
		m, err := parseManifest(kv)
		if err != nil {
			return fmt.Errorf("walk content: %w", err)
		}
		if err := fn(content.Info{Digest: digest, Size: m.Size, ModTime: m.Time}); err != nil {
			return err
		}
	}
	return nil
}

// pages gives the keys under a prefix.
func (s *Store) pages(ctx context.Context, prefix string, opts ...clientv3.OpOption) iter.Seq2[*mvccpb.KeyValue, error] {
	return keys.Under(ctx, s.get, prefix, pageSize, opts...)
}

// Room returns an error where the capacity is used up, or etcd has used up its quota.
func (s *Store) Room(ctx context.Context) error {
	if time.Since(time.Unix(0, s.fullAt.Load())) < remember {
		return fmt.Errorf("%w: etcd has used up its quota", content.ErrNoSpace)
	}
	n, err := s.Used(ctx)
	if err == nil && n >= s.capacity {
		err = s.noSpace(n)
	}
	return err
}

// Space returns how many bytes of the capacity are neither stored nor reserved, and the capacity.
func (s *Store) Space(ctx context.Context) (free, capacity int64, err error) {
	n, err := s.Used(ctx)
	return max(s.capacity-n, 0), s.capacity, err
}

// Used returns how many bytes are stored or reserved.
func (s *Store) Used(ctx context.Context) (int64, error) {
	resp, err := s.get(ctx, s.join(used))
	if err != nil {
		return 0, fmt.Errorf("read the space in use: %w", err)
	}
	if len(resp.Kvs) == 0 {
		return 0, nil
	}
	return parseUsed(resp.Kvs[0])
}

func (s *Store) noSpace(n int64) error {
	return fmt.Errorf("%w: of the %d bytes that may be kept in etcd %d are taken", content.ErrNoSpace, s.capacity, n)
}

// ReadMark returns the mark.
func (s *Store) ReadMark(ctx context.Context) ([]byte, error) {
	resp, err := s.get(ctx, s.join(mark))
	if err != nil {
		return nil, fmt.Errorf("read mark: %w", err)
	}
	if len(resp.Kvs) == 0 {
		return nil, nil
	}
	return resp.Kvs[0].Value, nil
}

// WriteMark replaces the mark.
func (s *Store) WriteMark(ctx context.Context, text []byte) error {
	if len(text) > content.MaxMark {
		return fmt.Errorf("write mark: %d bytes are more than %d", len(text), content.MaxMark)
	}
	err := s.repeat(ctx, func(ctx context.Context) (bool, error) {
		_, err := s.kv.Put(ctx, s.join(mark), string(text))
		return true, err
	})
	if err != nil {
		return fmt.Errorf("write mark: %w", err)
	}
	return nil
}

// Shared reports that many processes may use the store.
func (s *Store) Shared() bool { return true }

// Close does nothing: the client is the caller's.
func (s *Store) Close() error { return nil }

// manifest reads a manifest and the revision at which it was read. content.ErrNotFound if there is none.
func (s *Store) manifest(ctx context.Context, key string) (*manifest, int64, error) {
	resp, err := s.get(ctx, key)
	if err != nil {
		return nil, 0, err
	}
	if len(resp.Kvs) == 0 {
		return nil, 0, content.ErrNotFound
	}
	m, err := parseManifest(resp.Kvs[0])
	return m, resp.Header.Revision, err
}

// get reads, with the deadlines and repetitions of repeat.
func (s *Store) get(ctx context.Context, key string, opts ...clientv3.OpOption) (resp *clientv3.GetResponse, err error) {
	err = s.repeat(ctx, func(ctx context.Context) (bool, error) {
		resp, err = s.kv.Get(ctx, key, opts...)
		return true, err
	})
	return resp, err
}

// marshal encodes what only has fields that can be encoded.
func marshal(v any) (string, error) {
	text, err := json.Marshal(v)
	return string(text), err
}

var errSwept = errors.New("the upload took too long and was given up")
