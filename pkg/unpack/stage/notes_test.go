// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"strconv"
	"testing"
	"time"
)

func TestNotes(t *testing.T) {
	n := NewNotes()
	n.Add("a", Walk, time.Second)
	n.Add("a", Upload, -time.Second)
	if got := n.Of("a"); len(got) != 2 || got[Walk] != time.Second || got[Upload] != 0 {
		t.Errorf("the attempt has %v", got)
	}
	if got := n.Of("b"); len(got) != 0 {
		t.Errorf("an attempt that nobody knows has %v", got)
	}
	for i := range 2 * kept {
		n.Add(strconv.Itoa(i), Walk, time.Second)
	}
	if len(n.byAttempt) != kept || len(n.order) != kept {
		t.Errorf("%d attempts are remembered, in order %d", len(n.byAttempt), len(n.order))
	}
	if len(n.Of("0")) != 0 || len(n.Of(strconv.Itoa(2*kept-1))) != 1 {
		t.Error("those that are remembered are not the last ones")
	}
	var none *Notes
	none.Add("a", Walk, time.Second)
	if len(none.Of("a")) != 0 {
		t.Error("nobody remembers")
	}
}
