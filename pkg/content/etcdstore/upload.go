// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcdstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/failpoint"
)

const (
	// reserveStep is how much space an upload reserves at once, where there is so much.
	reserveStep = 8 * ChunkSize
	// maxFlights is how many chunks of one upload are on their way at the same time. Each is in memory once, and with an etcd that is not in this
	// process a second time, as the request that it is encoded in: with the chunk that fills, 7 MiB.
	maxFlights = 3
)

// upload is bytes on their way to a manifest. The last chunk stays in memory until commit.
type upload struct {
	store    *Store
	id       string
	last     []byte
	size     int64 // bytes in etcd, on their way there, and in last
	reserved int64
	begun    bool // etcd may know of it

	flights sync.WaitGroup
	places  chan struct{}      // one for each flight
	ctx     context.Context    // of the flights
	cancel  context.CancelFunc // nil before the first of them

	mu     sync.Mutex
	failed error // of the first flight that failed
}

func (s *Store) newUpload() *upload {
	return &upload{store: s, id: rand.Text(), places: make(chan struct{}, maxFlights)}
}

func (u *upload) key() string { return u.store.join(uploads, u.id) }

func (u *upload) write(ctx context.Context, p []byte) (int, error) {
	var n int
	for n < len(p) {
		if len(u.last) == ChunkSize {
			if err := u.flush(ctx); err != nil {
				return n, err
			}
		}
		part := p[n:min(len(p), n+ChunkSize-len(u.last))]
		u.last = append(u.last, part...)
		u.size += int64(len(part))
		n += len(part)
	}
	return n, nil
}

// flush sends the chunk in memory on its way, which may go on after ctx: commit waits for it, and abort ends it. Its error is that of
// the next flush, or of land.
func (u *upload) flush(ctx context.Context) error {
	if u.size > u.reserved {
		if err := u.reserve(ctx); err != nil {
			return err
		}
	}
	select {
	case u.places <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := u.failure(); err != nil {
		<-u.places
		return err
	}
	if u.cancel == nil {
		u.ctx, u.cancel = context.WithCancel(context.WithoutCancel(ctx))
	}
	key, text := u.store.chunkKey(u.id, (u.size-1)/ChunkSize), string(u.last)
	u.last = u.last[:0]
	u.flights.Go(func() {
		defer func() { <-u.places }()
		u.fail(u.send(u.ctx, key, text))
	})
	return nil
}

// send writes a chunk.
func (u *upload) send(ctx context.Context, key, text string) error {
	alive := clientv3.Compare(clientv3.CreateRevision(u.key()), ">", 0)
	put := clientv3.OpPut(key, text)
	err := u.store.repeat(ctx, func(ctx context.Context) (bool, error) {
		resp, err := u.store.kv.Txn(ctx).If(alive).Then(put).Commit()
		if err == nil && !resp.Succeeded {
			err = errSwept
		}
		return true, err
	})
	if err == nil {
		failpoint.Hit("etcdstore/after-chunk")
	}
	return err
}

func (u *upload) fail(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.failed == nil {
		u.failed = err
	}
}

func (u *upload) failure() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.failed
}

// land waits until no chunk is on its way, or ends those that are when ctx is done.
func (u *upload) land(ctx context.Context) error {
	if u.cancel == nil {
		return nil
	}
	defer u.cancel()
	stop := context.AfterFunc(ctx, u.cancel)
	defer stop()
	u.flights.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return u.failure()
}

// reserve takes space for what is in memory, and for what may come.
func (u *upload) reserve(ctx context.Context) error {
	known := u.begun
	u.begun = true
	var granted int64
	err := u.store.update(ctx, []string{u.key(), u.store.join(used)}, func(have snapshot) ([]clientv3.Op, error) {
		r, err := have.reservation(u.key())
		if err != nil {
			return nil, err
		}
		switch {
		case r == nil && known:
			return nil, errSwept
		case r == nil:
			r = &reservation{}
		}
		if granted = r.Bytes; granted >= u.size {
			return nil, nil
		}
		account, err := u.store.account(have, reserveStep)
		more := int64(reserveStep)
		if err != nil {
			more = u.size - r.Bytes
			if account, err = u.store.account(have, more); err != nil {
				return nil, err
			}
		}
		granted += more
		text, err := marshal(reservation{Bytes: granted, Time: time.Now().UTC()})
		return append(account, clientv3.OpPut(u.key(), text)), err
	})
	if err == nil {
		u.reserved = granted
		failpoint.Hit("etcdstore/after-reserve")
	}
	return err
}

// commit makes the bytes visible under the key of a manifest, in place of what it named
// before. A key in needed must be there, or it is content.ErrNotFound.
func (u *upload) commit(ctx context.Context, key string, needed ...string) error {
	if err := u.land(ctx); err != nil {
		return err
	}
	keys := append([]string{key, u.key(), u.store.join(used)}, needed...)
	err := u.store.update(ctx, keys, func(have snapshot) ([]clientv3.Op, error) {
		old, err := have.manifest(key)
		if err != nil {
			return nil, err
		}
		if old != nil && old.Upload == u.id {
			return nil, nil
		}
		for _, key := range needed {
			if have[key] == nil {
				return nil, content.ErrNotFound
			}
		}
		return u.commitOps(have, key, old)
	})
	if err != nil {
		return err
	}
	u.begun = false
	failpoint.Hit("etcdstore/after-commit")
	return nil
}

func (u *upload) commitOps(have snapshot, key string, old *manifest) ([]clientv3.Op, error) {
	r, err := have.reservation(u.key())
	if err != nil {
		return nil, err
	}
	if r == nil && u.begun {
		return nil, errSwept
	}
	text, err := marshal(manifest{Upload: u.id, Size: u.size, ChunkSize: ChunkSize, Time: time.Now().UTC()})
	if err != nil {
		return nil, err
	}
	ops := []clientv3.Op{clientv3.OpPut(key, text)}
	if len(u.last) > 0 {
		ops = append(ops, clientv3.OpPut(u.store.chunkKey(u.id, (u.size-1)/ChunkSize), string(u.last)))
	}
	more := u.size
	if r != nil {
		more -= r.Bytes
		ops = append(ops, clientv3.OpDelete(u.key()))
	}
	if old != nil {
		more -= old.Size
		ops = append(ops, u.store.deleteChunks(old.Upload))
	}
	account, err := u.store.account(have, more)
	return append(ops, account...), err
}

// abort takes back what etcd knows of the upload.
func (u *upload) abort(ctx context.Context) error {
	if u.cancel != nil {
		u.cancel()
		u.flights.Wait()
	}
	if !u.begun {
		return nil
	}
	return u.store.drop(ctx, u.id, func(reservation) bool { return false })
}

// drop ends an upload and returns its space, unless it is to be kept.
func (s *Store) drop(ctx context.Context, id string, keep func(reservation) bool) error {
	key := s.join(uploads, id)
	return s.free(ctx, []string{key}, func(have snapshot) ([]clientv3.Op, int64, error) {
		r, err := have.reservation(key)
		if err != nil {
			return nil, 0, fmt.Errorf("upload %s: %w", id, err)
		}
		if r == nil || keep(*r) {
			return nil, 0, nil
		}
		return []clientv3.Op{clientv3.OpDelete(key), s.deleteChunks(id)}, r.Bytes, nil
	})
}
