// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundleclient

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff makes pauses that double, with a quarter of chance, so that many clients do not come at the same time.
type backoff struct {
	min, max time.Duration
	last     time.Duration
	until    time.Time
}

// next is the next pause, which begins now.
func (b *backoff) next() time.Duration {
	b.last = min(max(2*b.last, b.min), b.max)
	pause := jitter(b.last)
	b.until = time.Now().Add(pause)
	return pause
}

// pending reports whether the pause is not over yet.
func (b *backoff) pending() bool { return time.Now().Before(b.until) }

// reset makes the next pause the shortest again.
func (b *backoff) reset() { b.last, b.until = 0, time.Time{} }

// jitter is a time from three quarters of d to d.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/4+1) }

// sleep waits, and reports whether ctx has not ended meanwhile.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
