// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"slices"
	"time"

	"k8s.io/client-go/tools/cache"
)

// serve gives free places to who waits, one to each namespace in turn, and calls whom it gives one, except who is
// asking just now. It returns after what time a place may be given that is not given now because others may come.
// When a place has become free, those who could have it then are called too, to be told so.
func (q *Queue) serve(now time.Time, asking cache.ObjectName, freed bool) time.Duration {
	var again time.Duration
	// Each round passes over every namespace once; a round in which nobody got a place is the last.
	for passed := 0; passed < len(q.turns) && q.used < q.limits.Total; {
		namespace := q.turns[0]
		s := q.spaces[namespace]
		full := s.used >= q.limits.PerNamespace
		gathering := time.Duration(0)
		if !full {
			gathering = q.gathering(s, now)
		}
		if full || gathering > 0 {
			if gathering > 0 && (again == 0 || gathering < again) {
				again = gathering
			}
			if first := s.waiting[0].name; gathering > 0 && freed && first != asking {
				q.call(first)
			}
			q.turns = append(q.turns[1:], namespace)
			passed++
			continue
		}
		first := s.waiting[0]
		q.give(s, first)
		if first.name != asking {
			q.call(first.name)
		}
		// It has had its turn. It is not among them any more when nobody waits in it.
		if i := slices.Index(q.turns, namespace); i >= 0 {
			q.turns = append(slices.Delete(q.turns, i, i+1), namespace)
		}
		passed = 0
	}
	return again
}

// gathering is how long the first of a namespace has yet to wait for company. Where nothing is under way nobody
// waits for company, so that a bundle that comes alone loses no time.
func (q *Queue) gathering(s *space, now time.Time) time.Duration {
	first := s.waiting[0]
	if q.limits.Gather <= 0 || q.limits.Share < 2 || first.Kind == "" || s.used == 0 {
		return 0
	}
	left := first.arrived.Add(q.limits.Gather).Sub(now)
	if left <= 0 || len(q.company(s, first)) >= q.limits.Share {
		return 0
	}
	return left
}

// company is who of a namespace shares a place with the first one, that one included, in order. Whose image would be one
// too many stays where it is, and becomes the first one in time.
func (q *Queue) company(s *space, first *waiter) []*waiter {
	company := []*waiter{first}
	if first.Kind == "" {
		return company
	}
	images := map[string]bool{first.Image: true}
	for _, w := range s.waiting {
		if len(company) == q.limits.Share {
			break
		}
		if w == first || w.Kind != first.Kind || !images[w.Image] && len(images) == q.limits.Images {
			continue
		}
		images[w.Image] = true
		company = append(company, w)
	}
	return company
}

// give gives a new place to the first one of a namespace and its company.
func (q *Queue) give(s *space, first *waiter) {
	company := q.company(s, first)
	// The name of a bundle with a sign in front is no name of a pod.
	p := q.take(first.name.Namespace+"/!"+first.name.Name, first.name.Namespace)
	p.first, p.called = first.name, true
	for _, w := range company {
		q.strike(w.name)
		p.members[w.name] = w
		q.held[w.name] = p
	}
}
