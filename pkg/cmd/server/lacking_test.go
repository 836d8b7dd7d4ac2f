// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"testing"

	"rukpak.io/apiserver/pkg/content/collect"
)

// TestLackingContent goes through rounds of collectors, and says after which of them the contents of all bundles are to be looked at.
func TestLackingContent(t *testing.T) {
	a, b, c := collect.Pair{BundleUID: "a", Digest: "1"}, collect.Pair{BundleUID: "b", Digest: "2"}, collect.Pair{BundleUID: "c", Digest: "3"}
	type pairs = []collect.Pair
	type step struct {
		store               string
		missing, unrecorded pairs
		broken              bool // the round came to nothing
		count               int
		changed             bool
	}
	for name, test := range map[string]struct {
		stores []string
		steps  []step
	}{
		"one store": {[]string{"hot"}, []step{
			{store: "hot"},
			{store: "hot", missing: pairs{a}, count: 1, changed: true},
			{store: "hot", missing: pairs{a}, count: 1},
			{store: "hot", broken: true, count: 1},
			{store: "hot", missing: pairs{a}, unrecorded: pairs{b}, count: 2, changed: true},
			{store: "hot", missing: pairs{a}, unrecorded: pairs{b}, count: 2},
			{store: "hot", changed: true},
		}},
		"content of the other store": {[]string{"cold", "hot"}, []step{
			{store: "hot", unrecorded: pairs{a, b}},
			{store: "cold", unrecorded: pairs{c}},
			{store: "hot", unrecorded: pairs{a}},
			{store: "hot", unrecorded: pairs{a, b}},
			{store: "hot", broken: true},
			{store: "cold"},
		}},
		"a record in neither": {[]string{"cold", "hot"}, []step{
			{store: "hot", unrecorded: pairs{a, b}},
			{store: "cold", unrecorded: pairs{b, c}, count: 1, changed: true},
			{store: "hot", unrecorded: pairs{a, b}, count: 1},
			{store: "cold", missing: pairs{a}, unrecorded: pairs{b, c}, count: 2, changed: true},
			{store: "hot", unrecorded: pairs{a}, changed: true},
			{store: "cold", missing: pairs{a}, unrecorded: pairs{b, c}, count: 1},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l := lackingContent{stores: test.stores}
			for range 2 { // after it is forgotten all is new again
				for i, s := range test.steps {
					count, changed := l.note(s.store, collect.Report{Missing: s.missing, Unrecorded: s.unrecorded, Looked: !s.broken})
					if count != s.count || changed != s.changed {
						t.Errorf("step %d: %d, %v, want %d, %v", i, count, changed, s.count, s.changed)
					}
				}
				l.reset()
			}
		})
	}
}
