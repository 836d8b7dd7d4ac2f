// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"io"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"rukpak.io/apiserver/pkg/content"
)

// reader reads a range chunk by chunk. What it is at is kept with that of all readers.
type reader struct {
	ctx      context.Context
	store    *Store
	key      string // of the manifest
	manifest *manifest
	revision int64
	at, end  int64
	chunk    *chunk // that at is in, nil if it is in none yet
	number   int64  // of chunk
	changes  bool   // another manifest under the key may have other bytes
	closed   bool
}

// open reads the manifest of a key and takes the range that content.Store's Open describes.
func (s *Store) open(ctx context.Context, key string, offset, length int64) (*reader, error) {
	m, revision, err := s.manifest(ctx, key)
	if err != nil {
		return nil, err
	}
	rest := m.Size - offset
	if offset < 0 || rest < 0 {
		return nil, fmt.Errorf("%w: offset %d of %d bytes", content.ErrOutOfRange, offset, m.Size)
	}
	if length < 0 || length > rest {
		length = rest
	}
	return &reader{ctx: ctx, store: s, key: key, manifest: m, revision: revision, at: offset, end: offset + length}, nil
}

func (r *reader) Read(p []byte) (int, error) {
	switch {
	case r.closed:
		return 0, errors.New("read content: closed already")
	case r.at >= r.end:
		return 0, io.EOF
	case len(p) == 0:
		return 0, nil
	}
	n, err := r.read(p[:min(int64(len(p)), r.end-r.at)])
	if err != nil {
		return 0, fmt.Errorf("read content at %d of %d bytes: %w", r.at, r.manifest.Size, err)
	}
	r.at += int64(n)
	return n, nil
}

// read copies what there is of the chunk at the position, which it reads if need be.
func (r *reader) read(p []byte) (int, error) {
	for {
		number := r.at / r.manifest.ChunkSize
		if r.chunk != nil && r.number != number {
			r.leave()
		}
		if r.chunk == nil {
			r.chunk, r.number = r.store.chunks.enter(r.store.chunkKey(r.manifest.Upload, number)), number
		}
		data := r.store.chunks.data(r.chunk)
		if data == nil {
			var err error
			if data, err = r.fetch(number); err != nil {
				return 0, err
			}
		}
		if r.chunk != nil {
			return copy(p, data[r.at-number*r.manifest.ChunkSize:]), nil
		}
	}
}

func (r *reader) leave() {
	if r.chunk != nil {
		r.store.chunks.leave(r.chunk)
		r.chunk = nil
	}
}

// Close lets go of the chunk in memory.
func (r *reader) Close() error {
	r.closed = true
	r.leave()
	return nil
}

// fetch reads a chunk from etcd. Where the manifest is another one by then, the reader is at no chunk.
func (r *reader) fetch(number int64) ([]byte, error) {
	done, err := r.store.chunks.fetching(r.ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if data := r.store.chunks.data(r.chunk); data != nil {
		return data, nil // another reader was quicker
	}
	resp, err := r.store.get(r.ctx, r.store.chunkKey(r.manifest.Upload, number), clientv3.WithRev(r.revision))
	if errors.Is(rpctypes.Error(err), rpctypes.ErrCompacted) {
		r.leave()
		return nil, r.refresh()
	}
	if err != nil {
		return nil, err
	}
	want := min(r.manifest.ChunkSize, r.manifest.Size-number*r.manifest.ChunkSize)
	if len(resp.Kvs) == 0 || int64(len(resp.Kvs[0].Value)) != want {
		return nil, fmt.Errorf("%w: chunk %d of upload %s is not what it was", content.ErrDigestMismatch, number, r.manifest.Upload)
	}
	r.store.chunks.keep(r.chunk, resp.Kvs[0].Value)
	return resp.Kvs[0].Value, nil
}

var errReplaced = errors.New("it was replaced while it was read, and etcd was compacted")

// refresh goes on with what the key names now.
func (r *reader) refresh() error {
	m, revision, err := r.store.manifest(r.ctx, r.key)
	if err != nil {
		return fmt.Errorf("it was removed while it was read, and etcd was compacted: %w", err)
	}
	if r.changes && m.Upload != r.manifest.Upload || m.Size != r.manifest.Size {
		return errReplaced
	}
	r.manifest, r.revision = m, revision
	return nil
}

// checked is a reader of the whole blob.
type checked struct {
	*reader
	digest string
	sum    *content.Sum
}

func newChecked(r *reader, digest string) *checked {
	return &checked{reader: r, digest: digest, sum: content.NewSum()}
}

func (c *checked) Read(p []byte) (int, error) {
	n, err := c.reader.Read(p)
	_, _ = c.sum.Write(p[:n])
	if errors.Is(err, io.EOF) {
		if err := c.sum.Check(c.digest); err != nil {
			return n, fmt.Errorf("read content: %w", err)
		}
	}
	return n, err
}
