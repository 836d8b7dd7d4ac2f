// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package queue decides which bundle is unpacked next when more of them want to be than may be at once.
//
// What is counted are places. A place is that of one unpack pod or of one pull by the server, and a Queue has a
// number of them in total and for each namespace, which has fewer while its pods hang. Namespaces take turns, and within one who has waited
// longest comes first, except that bundles whose last attempt hung come after the others, three times of four. So however many bundles one
// namespace has, another waits for no more than its turn. Bundles that are of one kind share a place, and then a pod. A place that is of no use to who has it, for the time being, can be lent. One
// with a pod is not free before the pod is gone, whether or not a bundle has it still.
//
// A Queue is memory alone. What it holds can be told again from the bundles, which say
// whether an attempt runs and since when there is something to do.
package queue

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"
)

// Limits bound the places of a Queue. Each is at least 1.
type Limits struct {
	// Total is how many places there are.
	Total int
	// PerNamespace is how many of them one namespace may have.
	PerNamespace int
	// First is how many of those it may have at first, before it is known how its pods fare; 0 is all of them.
	First int
	// Share is how many bundles of one kind have one place together.
	Share int
	// Images is how many different images the bundles that share a place have together.
	Images int
	// Pace, if set, returns how long a place has to wait whose bundles have so many images pulled by a kubelet; if not at all, they count from
	// then on. It must not call the Queue.
	Pace func(images int, now time.Time) time.Duration
	// Gather is how long a bundle that could share, in a namespace that has a place already, waits for others.
	Gather time.Duration
}

// Claim is what a bundle asks for.
type Claim struct {
	// Since is from when on it has waited, which puts it in its order. It is the same after a restart.
	Since time.Time
	// Kind is what bundles that may share a place have in common, within their namespace. An empty one is
	// shared with nobody.
	Kind string
	// Image is what of the bundle may be different from others of its kind.
	Image string
	// Pulled means that a kubelet pulls the image.
	Pulled bool
	// Hung puts the bundle behind those of its namespace of which it is not so, but for each fourth place: its last attempt was not done in its time.
	Hung bool
	// Leave gives up the place that the bundle has, so that it can share one with others again.
	Leave bool
}

// Turn is the answer to a claim.
type Turn struct {
	// Come means that the bundle has a place.
	Come bool
	// With are the others that have the same place, whose unpacking is left to the bundle that comes.
	With []cache.ObjectName
	// Waited is for how long it has been asking, if it does not come.
	Waited time.Duration
	// Soon means that there is a place as soon as Pace lets it be given.
	Soon bool
	// Again is after what time to ask again if nobody calls before; 0 is never.
	Again time.Duration
}

// Queue gives out places. It is safe for use by many goroutines.
type Queue struct {
	limits Limits
	call   func(cache.ObjectName)

	mu     sync.Mutex
	spaces map[string]*space
	turns  []string // namespaces in which somebody waits, whose turn is next first
	places map[string]*place
	pods   map[string]struct{} // the places that have one
	held   map[cache.ObjectName]*place
	lined  map[cache.ObjectName]*waiter
	used   int
	lent   int  // places that are taken and do not count
	paced  bool // what kubelets pull waits for a timer
}

// space is a namespace.
type space struct {
	used, lent int
	window     int       // how many places it may have
	given      int       // places, while it is known
	hung       time.Time // when a pod of it did so last
	waiting    []*waiter // in order
}

type waiter struct {
	Claim
	name    cache.ObjectName
	arrived time.Time
}

// place is taken by its first bundle, and kept as long as one has it, or a pod is there.
type place struct {
	id        string
	namespace string
	// first is the bundle that was called, until it says what it made of the place.
	first   cache.ObjectName
	called  bool
	lent    bool
	members map[cache.ObjectName]*waiter
}

// New returns a Queue that calls a bundle when it has got a place without having asked just then. Call must not
// call the Queue.
func New(limits Limits, call func(cache.ObjectName)) *Queue {
	limits.Total, limits.PerNamespace = max(limits.Total, 1), max(limits.PerNamespace, 1)
	limits.Share, limits.Images = max(limits.Share, 1), max(limits.Images, 1)
	limits.First = min(cmp.Or(max(limits.First, 0), limits.PerNamespace), limits.PerNamespace)
	return &Queue{
		limits: limits, call: call, spaces: map[string]*space{}, places: map[string]*place{},
		pods: map[string]struct{}{}, held: map[cache.ObjectName]*place{}, lined: map[cache.ObjectName]*waiter{},
	}
}

// Ask claims a place for a new attempt. Who has one already keeps it, unless others have it too, or a pod is there, or it is lent, or
// the claim gives it up. Who does not keep it and does not come has to end what it was for: others have the place then.
func (q *Queue) Ask(name cache.ObjectName, claim Claim, now time.Time) Turn {
	q.mu.Lock()
	defer q.mu.Unlock()
	if p := q.held[name]; p != nil && !p.called && (claim.Leave || p.lent || len(p.members) > 1 || q.hasPod(p)) {
		q.leave(name)
	}
	if q.held[name] == nil {
		q.enlist(&waiter{Claim: claim, name: name, arrived: now})
	}
	again := q.serve(now, name, false)
	p := q.held[name]
	switch {
	case p == nil:
		soon := q.paced && claim.Pulled && q.used < q.limits.Total && !q.spaces[name.Namespace].full()
		return Turn{Again: again, Waited: now.Sub(q.lined[name].arrived), Soon: soon}
	case p.called && p.first != name:
		return Turn{} // the first one acts
	}
	turn := Turn{Come: true}
	if p.called {
		for member := range p.members {
			if member != name {
				turn.With = append(turn.With, member)
			}
		}
		slices.SortFunc(turn.With, func(a, b cache.ObjectName) int { return order(p.members[a], p.members[b]) })
	}
	return turn
}

// Hold says that a bundle has a place, whatever the limits are. Bundles with the same id have it together. A place that was
// lent counts again.
func (q *Queue) Hold(name cache.ObjectName, id string, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	id = placeID(name.Namespace, id)
	if p := q.held[name]; p != nil && p.id == id {
		q.count(p)
		return
	}
	p := q.places[id]
	if p == nil {
		p = q.take(id, name.Namespace) // before it leaves another, with which all could be forgotten that is known of the namespace
	}
	q.leave(name) // who was to share the place that it was called to waits again
	q.count(p)
	p.members[name] = &waiter{name: name}
	q.held[name] = p
	q.serve(now, cache.ObjectName{}, true) // if it has left another place
}

// Knows tells whether a bundle waits or has a place.
func (q *Queue) Knows(name cache.ObjectName) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.held[name] != nil || q.lined[name] != nil
}

// Leave says that a bundle wants no place, and has none. Who waits gets it.
func (q *Queue) Leave(name cache.ObjectName, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.held[name] == nil && q.lined[name] == nil {
		return
	}
	q.leave(name)
	q.serve(now, cache.ObjectName{}, true)
}

// Position is which of how many of its namespace a bundle is, from 1; 0 when it does not wait.
func (q *Queue) Position(name cache.ObjectName) (position, of int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.lined[name]
	if w == nil {
		return 0, 0
	}
	waiting := q.spaces[name.Namespace].waiting
	i, _ := slices.BinarySearchFunc(waiting, w, order)
	return i + 1, len(waiting)
}

// Waiting is how many bundles wait.
func (q *Queue) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.lined)
}

// Used is how many places are taken, without those that are lent.
func (q *Queue) Used() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.used
}

func order(a, b *waiter) int {
	if a.Hung != b.Hung {
		if a.Hung {
			return 1
		}
		return -1
	}
	return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.name.Name, b.name.Name))
}

// enlist lets a bundle wait. One that waits already keeps the time of its arrival.
func (q *Queue) enlist(w *waiter) {
	if known := q.lined[w.name]; known != nil {
		if known.Since.Equal(w.Since) && known.Hung == w.Hung {
			known.Claim = w.Claim
			return
		}
		w.arrived = known.arrived
		q.strike(w.name)
	}
	s := q.space(w.name.Namespace)
	if len(s.waiting) == 0 {
		q.turns = append(q.turns, w.name.Namespace)
	}
	i, _ := slices.BinarySearchFunc(s.waiting, w, order)
	s.waiting = slices.Insert(s.waiting, i, w)
	q.lined[w.name] = w
}

// strike takes a bundle off those that wait.
func (q *Queue) strike(name cache.ObjectName) {
	w := q.lined[name]
	if w == nil {
		return
	}
	s := q.spaces[name.Namespace]
	// No two are equal in order, so the one that is found is this one.
	i, _ := slices.BinarySearchFunc(s.waiting, w, order)
	s.waiting = slices.Delete(s.waiting, i, i+1)
	delete(q.lined, name)
	q.tidy(name.Namespace)
}

func (q *Queue) space(namespace string) *space {
	s := q.spaces[namespace]
	if s == nil {
		s = &space{window: q.limits.First}
		q.spaces[namespace] = s
	}
	return s
}

// tidy forgets what is empty.
func (q *Queue) tidy(namespace string) {
	s := q.spaces[namespace]
	if s == nil || len(s.waiting) > 0 {
		return
	}
	if i := slices.Index(q.turns, namespace); i >= 0 {
		q.turns = slices.Delete(q.turns, i, i+1)
	}
	if s.idle() && !q.narrow(s) {
		delete(q.spaces, namespace)
	}
}

func (q *Queue) take(id, namespace string) *place {
	p := &place{id: id, namespace: namespace, members: map[cache.ObjectName]*waiter{}}
	q.places[id] = p
	q.space(namespace).used++
	q.used++
	return p
}

// leave ends whatever a bundle waits for or has. When the one that was called to a place leaves, the others of it
// wait again as they did.
func (q *Queue) leave(name cache.ObjectName) {
	q.strike(name)
	p := q.held[name]
	if p == nil {
		return
	}
	q.quit(name, p)
	if p.called && p.first == name {
		for _, w := range p.members {
			q.quit(w.name, p)
			q.enlist(w)
		}
	}
}

// quit takes a bundle out of a place, which is free with the last one unless a pod is there.
func (q *Queue) quit(name cache.ObjectName, p *place) {
	delete(p.members, name)
	delete(q.held, name)
	if len(p.members) > 0 {
		return
	}
	q.count(p)
	if !q.hasPod(p) {
		q.drop(p)
	}
}

func (q *Queue) drop(p *place) {
	delete(q.places, p.id)
	q.space(p.namespace).used--
	q.used--
	q.tidy(p.namespace)
}
