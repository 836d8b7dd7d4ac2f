// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcdstore

import (
	doublylinked "container/list"
	"context"
	"sync"
)

const (
	// maxChunks is how many chunks are kept for readers: 64 MiB, however many read. A slow reader whose chunk was
	// dropped for others reads it again.
	maxChunks = 64
	// maxFetches is how many chunks are read from etcd at the same time, each of which takes memory twice while it comes.
	maxFetches = 16
)

// shelf has those chunks that readers are at. A chunk is kept while somebody is at it, unless too many are. What has
// been written to a key of a chunk never changes.
type shelf struct {
	fetches chan struct{}

	mu     sync.Mutex
	all    map[string]*chunk  // by key: those that somebody is at
	recent *doublylinked.List // of those of all that have data
}

// chunk is one that readers are at.
type chunk struct {
	key     string
	readers int
	data    []byte                // nil before it was read, and after it was dropped
	place   *doublylinked.Element // in recent, nil without data
}

func newShelf() *shelf {
	return &shelf{fetches: make(chan struct{}, maxFetches), all: map[string]*chunk{}, recent: doublylinked.New()}
}

// enter says that a reader is at a chunk. It calls leave when it is not any more.
func (c *shelf) enter(key string) *chunk {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := c.all[key]
	if found == nil {
		found = &chunk{key: key}
		c.all[key] = found
	}
	found.readers++
	return found
}

func (c *shelf) leave(k *chunk) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.readers--; k.readers == 0 {
		c.drop(k)
		delete(c.all, k.key)
	}
}

// data returns that of a chunk, nil if it has none. It does not change.
func (c *shelf) data(k *chunk) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.data != nil {
		c.recent.MoveToFront(k.place)
	}
	return k.data
}

// keep gives a chunk data, in place of that of the chunk that was used least lately if there are too many.
func (c *shelf) keep(k *chunk, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.data != nil {
		return // another reader was quicker
	}
	k.data, k.place = data, c.recent.PushFront(k)
	for c.recent.Len() > maxChunks {
		c.drop(c.recent.Back().Value.(*chunk))
	}
}

func (c *shelf) drop(k *chunk) {
	if k.place != nil {
		c.recent.Remove(k.place)
	}
	k.data, k.place = nil, nil
}

// fetching waits until one more chunk may be read from etcd. The caller calls done.
func (c *shelf) fetching(ctx context.Context) (done func(), err error) {
	select {
	case c.fetches <- struct{}{}:
		return func() { <-c.fetches }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
