// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"slices"
	"sync"

	"rukpak.io/apiserver/pkg/content/collect"
)

// lackingContent is what the latest rounds of the collectors of all stores lack. Each sees the records of its own store alone, so
// that content without a record is what none of them has one of.
type lackingContent struct {
	stores []string // set before it is used

	mu         sync.Mutex
	missing    map[string][]collect.Pair // by store
	unrecorded map[string][]collect.Pair // by store, if its collector has looked
	nowhere    []collect.Pair            // in unrecorded of each store
}

// note takes the report of a round. It returns how much a store lacks, with what has a record in no store, and whether
// anything is lacking that was not before, or the other way. A round that did not come so far changes nothing.
func (l *lackingContent) note(store string, r collect.Report) (missing int, changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Looked {
		if l.missing == nil {
			l.missing, l.unrecorded = map[string][]collect.Pair{}, map[string][]collect.Pair{}
		}
		l.unrecorded[store] = r.Unrecorded
		nowhere := l.inNone()
		changed = !slices.Equal(r.Missing, l.missing[store]) || !slices.Equal(nowhere, l.nowhere)
		l.missing[store], l.nowhere = r.Missing, nowhere
	}
	return len(l.missing[store]) + len(l.nowhere), changed
}

// inNone gives the pairs that no store has a record of. While a collector has not looked nobody knows.
func (l *lackingContent) inNone() []collect.Pair {
	var found []collect.Pair
	for i, store := range l.stores {
		pairs, looked := l.unrecorded[store]
		switch {
		case !looked:
			return nil
		case i == 0:
			found = pairs
		default:
			found = slices.DeleteFunc(slices.Clone(found), func(p collect.Pair) bool {
				_, here := slices.BinarySearchFunc(pairs, p, collect.ComparePairs)
				return !here
			})
		}
	}
	return found
}

// reset forgets all: what was seen while this replica led before may be long ago.
func (l *lackingContent) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.missing, l.unrecorded, l.nowhere = nil, nil, nil
}
