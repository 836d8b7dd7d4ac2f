// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// Times in a status were written by another process, whose clock may have been ahead of this one, by as much as a clock can be
// before somebody puts it back. Nothing waits for longer than it would have had the clocks been the same.

// clocksDiffer is by how much clocks differ at most that are kept right.
const clocksDiffer = time.Minute

// until returns how long it is until a time that was at most so far away when it was written. One that is further away came
// from a clock that was ahead: the wait counts as over.
func until(at, now time.Time, longest time.Duration) time.Duration {
	left := at.Sub(now)
	if left > longest+time.Second { // the API holds whole seconds
		return 0
	}
	return max(left, 0)
}

// longestWait is the longest that anything waits after a failure.
func (w *work) longestWait() time.Duration { return max(w.Backoff.Cap, w.Backoff.Slow) }

// beginNow corrects an attempt that begins in the future, so that its deadline is no further away than that of any other.
func (w *work) beginNow(ctx context.Context) error {
	if !w.bundle.Status.Unpack.StartTime.After(w.now) {
		return nil
	}
	return w.save(ctx, func(s *v1alpha1.BundleStatus) { s.Unpack.StartTime = &metav1.Time{Time: w.now} })
}
