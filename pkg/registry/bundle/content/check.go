// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	doublylinked "container/list"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/verify"
)

// errDamaged is the error of bytes that are not those of their digest.
var errDamaged = verify.ErrDamaged

// seals remember what content looks like whose digest was found to be right: a sum of each chunk, with a key that
// only this process has. The sums cost a quarter of what the digest does, and tell of a wrong chunk before it is
// sent; the digest tells of it only before the last one is.
type seals struct {
	seed maphash.Seed

	mu     sync.Mutex
	sums   int // of all contents
	recent *doublylinked.List
	all    map[string]*doublylinked.Element
}

// maxSums bounds the sums that are kept, of 8 bytes each: 16 MiB, for 64 GiB of content.
const maxSums = 2 << 20

type seal struct {
	digest string
	sums   []uint64
}

func newSeals() *seals {
	return &seals{seed: maphash.MakeSeed(), recent: doublylinked.New(), all: map[string]*doublylinked.Element{}}
}

func (s *seals) find(digest string) []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.all[digest]
	if !ok {
		return nil
	}
	s.recent.MoveToFront(found)
	return found.Value.(*seal).sums
}

// keep remembers the sums of a content, in place of those that were used least lately.
func (s *seals) keep(digest string, sums []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.all[digest]; ok || len(sums) > maxSums {
		return
	}
	s.all[digest] = s.recent.PushFront(&seal{digest, sums})
	s.sums += len(sums)
	for s.sums > maxSums {
		s.remove(s.recent.Back())
	}
}

// forget makes the digest be looked at again.
func (s *seals) forget(digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if found, ok := s.all[digest]; ok {
		s.remove(found)
	}
}

func (s *seals) remove(e *doublylinked.Element) {
	old := s.recent.Remove(e).(*seal)
	delete(s.all, old.digest)
	s.sums -= len(old.sums)
}

// check looks at the chunks of a content that is read from its first byte to its last. A nil check finds nothing
// wrong with anything.
type check struct {
	seals  *seals
	digest string
	size   int64
	seen   int64
	known  []uint64     // sums of a content that was whole once
	sums   []uint64     // else those that are found now
	sum    *content.Sum // of one that was not
	// work and done hand a chunk to the goroutine that hashes it while it is being sent.
	work, done chan []byte
	hashing    bool
}

// check begins to look at a content.
func (s *seals) check(digest string, size int64) *check {
	c := &check{seals: s, digest: digest, size: size, known: s.find(digest)}
	if c.known == nil {
		c.sum = content.NewSum()
	}
	return c
}

// before returns errDamaged for bytes that must not be sent: they are not what they were when the content was whole,
// or they are the last ones and the digest is wrong. Until after is called they must not change. All but the last
// are a number of whole chunks.
func (c *check) before(p []byte, last bool) error {
	if c == nil {
		return nil
	}
	at := int(c.seen / chunkSize)
	c.seen += int64(len(p))
	if c.seen > c.size || last && c.seen < c.size {
		return fmt.Errorf("%w: there are %d of %d bytes", errDamaged, c.seen, c.size)
	}
	for chunk := range slices.Chunk(p, chunkSize) {
		sum := maphash.Bytes(c.seals.seed, chunk)
		if c.known == nil {
			c.sums = append(c.sums, sum)
		} else if at >= len(c.known) || c.known[at] != sum {
			c.seals.forget(c.digest)
			return fmt.Errorf("%w: they have changed at byte %d or after it", errDamaged, int64(at)*chunkSize)
		}
		at++
	}
	switch {
	case c.known != nil || len(p) == 0:
		return nil
	case c.seen < c.size:
		c.begin(p)
		return nil
	}
	_, _ = c.sum.Write(p)
	if got := c.sum.Digest(); got != c.digest {
		return fmt.Errorf("%w: they have %s", errDamaged, got)
	}
	c.seals.keep(c.digest, c.sums)
	return nil
}

// begin hashes a chunk in a goroutine, which lasts as long as the check.
func (c *check) begin(chunk []byte) {
	if c.work == nil {
		c.work, c.done = make(chan []byte), make(chan []byte)
		go func(sum *content.Sum, work <-chan []byte, done chan<- []byte) {
			for chunk := range work {
				_, _ = sum.Write(chunk)
				done <- chunk
			}
		}(c.sum, c.work, c.done)
	}
	c.work <- chunk
	c.hashing = true
}

// after waits until nobody needs the chunk any more.
func (c *check) after() {
	if c != nil && c.hashing {
		<-c.done
		c.hashing = false
	}
}

func (c *check) close() {
	if c == nil {
		return
	}
	c.after()
	if c.work != nil {
		close(c.work)
	}
}
