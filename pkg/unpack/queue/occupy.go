// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"time"

	"k8s.io/client-go/tools/cache"
)

// Occupy says that the pod of a place, whose id is that of Hold, is there. A place that no bundle has counts from then on, but
// only as long as its namespace has no more places than the limit: nobody keeps others from theirs with pods that look as if they were
// the server's.
func (q *Queue) Occupy(namespace, id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	id = placeID(namespace, id)
	q.pods[id] = struct{}{}
	if s := q.spaces[namespace]; q.places[id] == nil && (s == nil || s.used < q.limits.PerNamespace) {
		q.take(id, namespace)
	}
}

// Vacate says that the pod of a place is gone. Who waits gets the place, unless a bundle has it.
func (q *Queue) Vacate(namespace, id string, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	id = placeID(namespace, id)
	delete(q.pods, id)
	if p := q.places[id]; p != nil && len(p.members) == 0 {
		q.drop(p)
		q.serve(now, cache.ObjectName{}, true)
	}
}

func (q *Queue) hasPod(p *place) bool {
	_, ok := q.pods[p.id]
	return ok
}

func placeID(namespace, id string) string { return namespace + "/" + id }
