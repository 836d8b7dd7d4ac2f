// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"sync"
	"time"
)

// notes remembers of running attempts what their status does not hold. After a
// restart it is empty, which costs some patience and the exactness of a metric.
type notes struct {
	mu      sync.Mutex
	byNonce map[string]*note
}

type note struct {
	began        time.Time // zero when this process did not begin it
	firstFailure time.Time // when the node first failed over its pod
	disruption   *verdict  // why its pod was taken away
}

func (n *notes) begin(nonce string, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.get(nonce).began = now
}

// failing returns when the node first failed over an attempt's pod, which is now
// unless it was before.
func (n *notes) failing(nonce string, now time.Time) time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	attempt := n.get(nonce)
	if attempt.firstFailure.IsZero() {
		attempt.firstFailure = now
	}
	return attempt.firstFailure
}

// disrupted remembers why the pod of an attempt was taken away, which the pod tells for a moment only. Of an
// attempt that nobody knows any more nothing is kept.
func (n *notes) disrupted(nonce string, v verdict) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if attempt := n.byNonce[nonce]; attempt != nil {
		attempt.disruption = &v
	}
}

// disruption returns why the pod of an attempt was taken away, or nil when it is not known.
func (n *notes) disruption(nonce string) *verdict {
	n.mu.Lock()
	defer n.mu.Unlock()
	if attempt := n.byNonce[nonce]; attempt != nil {
		return attempt.disruption
	}
	return nil
}

// drop forgets an attempt and returns when it began, or the zero time.
func (n *notes) drop(nonce string) time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	attempt := n.get(nonce)
	delete(n.byNonce, nonce)
	return attempt.began
}

func (n *notes) get(nonce string) *note {
	if n.byNonce == nil {
		n.byNonce = map[string]*note{}
	}
	attempt := n.byNonce[nonce]
	if attempt == nil {
		attempt = &note{}
		n.byNonce[nonce] = attempt
	}
	return attempt
}
