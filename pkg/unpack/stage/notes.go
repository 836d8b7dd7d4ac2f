// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"sync"
	"time"
)

// kept bounds the attempts that Notes remember: in a replica that does not lead nobody asks for them.
const kept = 1024

// Notes carry what an attempt has spent in its stages from where that is measured to where the attempt is told of, within
// one process. They are safe for use by many goroutines; nil remembers nothing.
type Notes struct {
	mu        sync.Mutex
	byAttempt map[string]map[Stage]time.Duration
	order     []string // of the attempts, the oldest first
}

// NewNotes returns Notes that are empty.
func NewNotes() *Notes { return &Notes{byAttempt: map[string]map[Stage]time.Duration{}} }

// Add notes what an attempt, which its nonce names, has spent in a stage.
func (n *Notes) Add(nonce string, s Stage, d time.Duration) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byAttempt[nonce] == nil {
		if len(n.order) == kept {
			delete(n.byAttempt, n.order[0])
			n.order = n.order[1:]
		}
		n.byAttempt[nonce] = map[Stage]time.Duration{}
		n.order = append(n.order, nonce)
	}
	n.byAttempt[nonce][s] = max(d, 0)
}

// Of returns what is known of an attempt.
func (n *Notes) Of(nonce string) map[Stage]time.Duration {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	found := make(map[Stage]time.Duration, len(n.byAttempt[nonce]))
	for s, d := range n.byAttempt[nonce] {
		found[s] = d
	}
	return found
}
