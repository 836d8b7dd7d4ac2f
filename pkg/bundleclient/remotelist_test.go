// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundleclient

import (
	"fmt"
	"testing"
)

// Lists without entries are bounded, too, and what was used last stays.
func TestEmptyListsAreBounded(t *testing.T) {
	l := &lists{}
	l.keep("used", nil)
	for i := range maxListed + 100 {
		l.keep(fmt.Sprint(i), nil)
		if i%1000 == 0 {
			l.get("used")
		}
	}
	if len(l.kept) != maxListed || len(l.order) != maxListed || l.total != maxListed {
		t.Errorf("%d lists are kept, %d in their order, of a weight of %d", len(l.kept), len(l.order), l.total)
	}
	if _, ok := l.get("used"); !ok {
		t.Error("what was used is gone")
	}
	if _, ok := l.get("0"); ok {
		t.Error("what was not used is kept")
	}
	l.keep("long", make([]*remoteInfo, 2*maxListed))
	if _, ok := l.get("long"); !ok || len(l.kept) != 1 || l.total != 2*maxListed+1 {
		t.Errorf("%d lists are kept beside a long one", len(l.kept)-1)
	}
}
