// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"time"

	"k8s.io/client-go/tools/cache"
)

// Lend lets others have a place in place of a bundle that keeps its own, which does not count from now on. It returns whether
// that is so: there are no more places that do not count than there are others, in total and for a namespace, so
// that there are at most twice as many as the limits say.
func (q *Queue) Lend(name cache.ObjectName, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.held[name]
	if p == nil || p.called {
		return false
	}
	s := q.space(p.namespace)
	if p.lent {
		return true
	}
	if q.lent >= q.limits.Total || s.lent >= q.limits.PerNamespace {
		return false
	}
	p.lent = true
	s.used, s.lent = s.used-1, s.lent+1
	q.used, q.lent = q.used-1, q.lent+1
	q.serve(now, cache.ObjectName{}, true)
	return true
}

// count ends that a place does not count.
func (q *Queue) count(p *place) {
	if !p.lent {
		return
	}
	p.lent = false
	s := q.space(p.namespace)
	s.used, s.lent = s.used+1, s.lent-1
	q.used, q.lent = q.used+1, q.lent-1
}

// Wanted tells whether somebody waits who would have the place of a bundle, if that left it.
func (q *Queue) Wanted(name cache.ObjectName) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.held[name]
	if p == nil || p.lent {
		return false
	}
	full := q.used >= q.limits.Total
	for _, namespace := range q.turns {
		switch s := q.spaces[namespace]; {
		case namespace == p.namespace:
			// It may have fewer places than it has.
			if (full || s.full()) && s.used <= s.window {
				return true
			}
		case full && !s.full():
			return true
		}
	}
	return false
}
