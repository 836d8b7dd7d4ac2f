// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package places bounds how many writes run at the same time, and shares them out among those who write.
package places

import (
	"context"
	"sync"
)

// Places are shared out among tenants, which are namespaces: the last one that is free
// is for a tenant that has none, and one that becomes free goes to the tenant that has least, of those that
// wait; among equals, to the one that waits longest.
type Places struct {
	mu      sync.Mutex
	free    int
	most    int
	each    int
	held    map[string]int
	waiting []*waiter // in the order in which they came
}

type waiter struct {
	tenant   string
	admitted chan struct{}
}

// New returns n places, of which one tenant has at most each.
func New(n, each int) *Places { return &Places{free: n, most: n, each: each, held: map[string]int{}} }

// Take waits for a place until ctx ends. The function that it returns gives it back.
func (p *Places) Take(ctx context.Context, tenant string) (release func(), err error) {
	w := &waiter{tenant, make(chan struct{})}
	p.mu.Lock()
	p.waiting = append(p.waiting, w)
	p.admit()
	p.mu.Unlock()
	select {
	case <-w.admitted:
	case <-ctx.Done():
		if p.leave(w) {
			return nil, context.Cause(ctx)
		}
	}
	return sync.OnceFunc(func() { p.release(tenant) }), nil
}

// Waiting reports whether somebody waits for a place.
func (p *Places) Waiting() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting) > 0
}

// leave takes a waiter out, and reports whether it was still waiting.
func (p *Places) leave(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.waiting {
		if p.waiting[i] == w {
			p.waiting = append(p.waiting[:i], p.waiting[i+1:]...)
			return true
		}
	}
	return false
}

func (p *Places) release(tenant string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free++
	if p.held[tenant]--; p.held[tenant] == 0 {
		delete(p.held, tenant)
	}
	p.admit()
}

// admit gives places away for as long as there is one, and somebody who may have it.
func (p *Places) admit() {
	for p.free > 0 {
		next := -1
		for i, w := range p.waiting {
			if p.held[w.tenant] < p.each && (next < 0 || p.held[w.tenant] < p.held[p.waiting[next].tenant]) {
				next = i
			}
		}
		if next < 0 || p.free == 1 && p.most > 1 && p.held[p.waiting[next].tenant] > 0 {
			return
		}
		w := p.waiting[next]
		p.waiting = append(p.waiting[:next], p.waiting[next+1:]...)
		p.free--
		p.held[w.tenant]++
		close(w.admitted)
	}
}
