// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"sort"
	"time"

	"k8s.io/client-go/tools/cache"
)

// forget is how long it is remembered of a namespace that its pods hung, once nobody of it waits or has a place any more.
const forget = time.Hour

// Started says that a pod of a namespace, or what is pulled without one, has got what it waited for: the namespace may have one place more, up to the limit.
func (q *Queue) Started(namespace string, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.spaces[namespace]
	if s == nil || s.window >= q.limits.PerNamespace {
		return
	}
	s.window++
	q.tidy(namespace)
	q.serve(now, cache.ObjectName{}, true)
}

// Hung says that a pod of a namespace was given up after a long time in which it did not start, and has kept a place from others. The namespace
// may have half as many places, and a quarter of the limit at least. It stays so until pods of it start, or it has paused for long.
// What comes back is how many places it may have now.
func (q *Queue) Hung(namespace string, now time.Time) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	for name, s := range q.spaces {
		if s.idle() && now.Sub(s.hung) >= forget {
			delete(q.spaces, name)
		}
	}
	s := q.space(namespace)
	s.window, s.hung = max(s.window/2, min(q.limits.First, max(q.limits.PerNamespace/4, 1))), now
	q.tidy(namespace)
	return s.window
}

// Narrowed is how many namespaces may have fewer places than at first.
func (q *Queue) Narrowed() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, s := range q.spaces {
		if q.narrow(s) {
			n++
		}
	}
	return n
}

// Window is how many places a namespace may have now, and whether they are fewer than at first.
func (q *Queue) Window(namespace string) (places int, narrow bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s := q.spaces[namespace]; s != nil {
		return s.window, q.narrow(s)
	}
	return q.limits.First, false
}

func (q *Queue) narrow(s *space) bool { return s.window < q.limits.First }

// next is who of a namespace comes next, of those that wait. Each fourth place is for who hung, so that it is tried again however many others
// there are.
func (s *space) next() *waiter {
	if s.given%4 == 3 {
		// They are in order, those that hung last.
		if i := sort.Search(len(s.waiting), func(i int) bool { return s.waiting[i].Hung }); i < len(s.waiting) {
			return s.waiting[i]
		}
	}
	return s.waiting[0]
}

// idle means that nobody of a namespace waits or has a place.
func (s *space) idle() bool { return len(s.waiting) == 0 && s.used == 0 && s.lent == 0 }

func (s *space) full() bool { return s.used >= s.window }
