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
	// What a kubelet pulls waits for the pace, in its order; what none pulls does not.
	paced := q.paced
	// Each round passes over every namespace once; a round in which nobody got a place is the last.
	for passed := 0; passed < len(q.turns) && q.used < q.limits.Total; {
		namespace := q.turns[0]
		s := q.spaces[namespace]
		first := s.next()
		full := s.full()
		gathering := time.Duration(0)
		if !full {
			gathering = q.gathering(s, now)
		}
		passed++
		switch {
		case full:
		case gathering > 0:
			if again == 0 || gathering < again {
				again = gathering
			}
			if freed && first.name != asking {
				q.call(first.name)
			}
		case paced && first.Pulled: // without a look at all who wait with it
		default:
			company := q.company(s, first)
			if paced = paced || q.pace(company, now); paced && pulled(company) > 0 {
				break
			}
			q.give(first, company)
			if first.name != asking {
				q.call(first.name)
			}
			passed = 0
		}
		// It has had its turn. It is not among them any more when nobody waits in it.
		if i := slices.Index(q.turns, namespace); i >= 0 {
			q.turns = append(slices.Delete(q.turns, i, i+1), namespace)
		}
	}
	return again
}

// pace reports whether a company has to wait, and sees to it that places are given later then.
func (q *Queue) pace(company []*waiter, now time.Time) bool {
	images := pulled(company)
	if images == 0 || q.limits.Pace == nil {
		return false
	}
	left := q.limits.Pace(images, now)
	if left > 0 {
		q.serveIn(left)
	}
	return left > 0
}

// pulled is how many images of those who share a place a kubelet pulls.
func pulled(company []*waiter) int {
	images := map[string]bool{}
	for _, w := range company {
		if w.Pulled {
			images[w.Image] = true
		}
	}
	return len(images)
}

// serveIn gives places later. Until then more may come who have an image in common.
func (q *Queue) serveIn(left time.Duration) {
	q.paced = true
	time.AfterFunc(left, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.paced = false
		q.serve(time.Now(), cache.ObjectName{}, true)
	})
}

// gathering is how long the first of a namespace has yet to wait for company. Where nothing is under way nobody
// waits for company, so that a bundle that comes alone loses no time.
func (q *Queue) gathering(s *space, now time.Time) time.Duration {
	first := s.next()
	if q.limits.Gather <= 0 || q.limits.Share < 2 || first.Kind == "" || s.used == 0 {
		return 0
	}
	left := first.arrived.Add(q.limits.Gather).Sub(now)
	if left <= 0 || len(q.company(s, first)) >= q.limits.Share {
		return 0
	}
	return left
}

// reach is how many of those who wait are looked at for company: what one who waits can be overtaken by.
const reach = 1000

// company is who of a namespace shares a place with the first one, that one included: first those of its image, then those
// of the image of who comes next, so that together they have few, each of which has to be pulled. Whose image would be one too many
// stays where it is, and becomes the first one in time.
func (q *Queue) company(s *space, first *waiter) []*waiter {
	if first.Kind == "" {
		return []*waiter{first}
	}
	var images []string // in order
	byImage := map[string][]*waiter{}
	for _, w := range s.waiting[:min(len(s.waiting), reach)] {
		if w.Kind != first.Kind {
			continue
		}
		if byImage[w.Image] == nil {
			images = append(images, w.Image)
		}
		byImage[w.Image] = append(byImage[w.Image], w)
	}
	var company []*waiter
	for _, image := range images[:min(len(images), q.limits.Images)] {
		company = append(company, byImage[image]...)
	}
	return company[:min(len(company), q.limits.Share)]
}

// give gives a new place to the first one of a namespace and its company.
func (q *Queue) give(first *waiter, company []*waiter) {
	// The name of a bundle with a sign in front is no name of a pod.
	p := q.take(first.name.Namespace+"/!"+first.name.Name, first.name.Namespace)
	p.first, p.called = first.name, true
	q.spaces[p.namespace].given++
	for _, w := range company {
		q.strike(w.name)
		p.members[w.name] = w
		q.held[w.name] = p
	}
}
