// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"slices"
	"time"

	"k8s.io/client-go/tools/cache"
)

// Succeeded says that an attempt of a namespace has succeeded: it may have one place more, up to the limit.
func (q *Queue) Succeeded(namespace string, now time.Time) {
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

// Hung says that an attempt of a namespace was given up after a long time, for which it has kept a place from others. The namespace
// may have half as many places, and a quarter of the limit at least. It stays so, while nobody of it waits or has a place, too, until
// attempts succeed.
func (q *Queue) Hung(namespace string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.space(namespace)
	s.window = max(s.window/2, min(q.limits.First, max(q.limits.PerNamespace/4, 1)))
	q.tidy(namespace)
}

// Window is how many places a namespace may have now.
func (q *Queue) Window(namespace string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s := q.spaces[namespace]; s != nil {
		return s.window
	}
	return q.limits.First
}

// next is who of a namespace comes next, of those that wait. Each fourth place is for who hung, so that it is tried again however many others
// there are.
func (s *space) next() *waiter {
	if s.given%4 == 3 {
		if i, _ := slices.BinarySearchFunc(s.waiting, true, func(w *waiter, _ bool) int {
			if w.Hung {
				return 0
			}
			return -1
		}); i < len(s.waiting) {
			return s.waiting[i]
		}
	}
	return s.waiting[0]
}

func (s *space) full() bool { return s.used >= s.window }
