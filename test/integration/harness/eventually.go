// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"testing"
	"time"
)

const (
	// Patience bounds the wait for something that happens by itself.
	Patience = 60 * time.Second
	// Pause is the time between two looks at it.
	Pause = 50 * time.Millisecond
)

// Eventually waits until check returns an empty string, which else says what is not yet as it should be.
func Eventually(t *testing.T, what string, check func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	for {
		problem := check()
		if problem == "" {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: still not so: %s", what, problem)
		case <-time.After(Pause):
		}
	}
}
