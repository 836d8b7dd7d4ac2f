// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"errors"
	"testing"

	"rukpak.io/apiserver/pkg/content/upload"
)

// The parts of an upload stand below a prefix of their own: that they are there says nothing of the bundles, which may be lost.
func TestPartsOfUploadsDoNotMakeTheStateLookWhole(t *testing.T) {
	s := newSite(t)
	p := s.commit(t, "bundle", blob(1), true)
	s.commit(t, upload.HolderPrefix+"abc-1", blob(2), true)
	s.wait()
	s.forget(p)
	for range 3 {
		if _, err := s.Collect(t.Context()); !errors.Is(err, ErrHeld) {
			t.Errorf("not held: %v", err)
		}
		s.wait()
	}
	s.want(t, p, true, true)
}
