// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package rukpak

import "iter"

// Contents gives what the status names: the current content, if there is one, and those of its history.
func (s *BundleStatus) Contents() iter.Seq[*ContentStatus] {
	return func(yield func(*ContentStatus) bool) {
		if s.Content != nil && !yield(s.Content) {
			return
		}
		for i := range s.History {
			if !yield(&s.History[i]) {
				return
			}
		}
	}
}
