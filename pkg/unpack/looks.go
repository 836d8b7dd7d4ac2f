// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"

	"rukpak.io/apiserver/pkg/unpack/queue"
)

// Each look is a pod, or asks a registry, and none is urgent. One that hangs keeps its place until its time is over and its node has let
// go of its pod: so a namespace has a part of the places alone, and others have theirs in turn.
const (
	looksAtOnce       = 8
	looksPerNamespace = 2
)

// looks bounds how many looks run at a time, and remembers of each what nobody else does, from when it is asked for
// until it ends, however it does. After a restart that costs some patience.
type looks struct {
	places *queue.Queue
	mu     sync.Mutex
	known  map[cache.ObjectName]*look
	all    sync.WaitGroup
}

// look is one that waits or runs.
type look struct {
	since time.Time // when it was asked for
	// failing is the name of the look whose pod the node has failed over, first at the time firstFailure.
	failing      string
	firstFailure time.Time
	direct       *directLook // nil where a pod looks
}

// directLook is a look of this process.
type directLook struct {
	nonce  string
	cancel context.CancelFunc
	result *finding // once it has ended
}

// newLooks wakes a bundle when its turn has come.
func newLooks(wake func(cache.ObjectName)) *looks {
	return &looks{
		places: queue.New(queue.Limits{Total: looksAtOnce, PerNamespace: looksPerNamespace}, wake),
		known:  map[cache.ObjectName]*look{},
	}
}

// begin tells whether the look for a bundle may run, in a pod of a name, or in this process if there is no name. One whose pod is there
// runs. If not, it is woken when its turn has come, and has its place then.
func (l *looks) begin(name cache.ObjectName, pod string, there bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.known[name] == nil {
		l.known[name] = &look{since: now}
	}
	if !there && !l.places.Ask(name, queue.Claim{Since: l.known[name].since}, now).Come {
		return false
	}
	if pod != "" {
		l.places.Hold(name, pod, now)
	}
	return true
}

// end gives up the place of a bundle that has one, or that waits for one.
func (l *looks) end(name cache.ObjectName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.known[name]
	if known == nil {
		return
	}
	if known.direct != nil {
		known.direct.cancel()
	}
	delete(l.known, name)
	l.places.Leave(name, time.Now())
}

// failing returns when the node first failed over the pod of a look that has begun, which is now unless it was before.
func (l *looks) failing(name cache.ObjectName, nonce string, now time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.known[name]
	if known.failing != nonce {
		known.failing, known.firstFailure = nonce, now
	}
	return known.firstFailure
}

// result returns what a look of this process has come to, and whether there is one of that name.
func (l *looks) result(name cache.ObjectName, nonce string) (finding, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.known[name].direct
	if d == nil || d.nonce != nonce {
		return finding{}, false
	}
	if d.result == nil {
		return finding{}, true
	}
	return *d.result, true
}

// run runs a look that has begun in this process, in place of one of another name, and calls done when its result is known.
func (l *looks) run(name cache.ObjectName, nonce string, cancel context.CancelFunc, find func() finding, done func()) {
	d := &directLook{nonce: nonce, cancel: cancel}
	l.mu.Lock()
	defer l.mu.Unlock()
	if before := l.known[name].direct; before != nil {
		before.cancel()
	}
	l.known[name].direct = d
	l.all.Go(func() {
		defer cancel()
		f := find()
		l.mu.Lock()
		d.result = &f
		l.mu.Unlock()
		done()
	})
}

// find is the image that a look of a name has found.
type find struct{ nonce, reference string }
