// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"context"
	"testing"
	"time"
)

// TestScrubAfterAClockThatWasAhead: the next pass does not wait for what that clock said, and the last is not told as one of the future.
func TestScrubAfterAClockThatWasAhead(t *testing.T) {
	w := newWorld(t)
	digest := w.blob(data("a"))
	future, past := w.now.Add(365*24*time.Hour), w.now.Add(-24*time.Hour)
	for name, p := range map[string]Progress{
		"it ended":            {Started: future, Completed: future, Blobs: 7},
		"it was broken off":   {Started: future, Completed: past, Blobs: 7},
		"so was one after it": {Started: future.Add(time.Hour), Completed: future},
	} {
		t.Run(name, func(t *testing.T) {
			s := scrubber(w)
			s.progress = p
			save, saved := s.Save, 0
			s.Save = func(ctx context.Context, p Progress) error {
				if saved++; p.Completed.After(w.now) || p.Started.After(w.now) {
					t.Errorf("saved %+v at %v", p, w.now)
				}
				return save(ctx, p)
			}
			if wait, err := s.next(t.Context()); err != nil || wait != s.Interval {
				t.Fatalf("got %v, %v", wait, err)
			}
			if len(s.read) != 1 || s.read[0] != digest || saved < 2 || s.progress.running() {
				t.Errorf("read %v, saved %d times, progress %+v", s.read, saved, s.progress)
			}
		})
	}
}
