// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// come asks for n bundles of a namespace, and returns how many have a place.
func (b *bench) come(namespace string, n int) int {
	come := 0
	for i := range n {
		if b.ask(namespace, i, "").Come {
			come++
		}
	}
	return come
}

// A namespace has more places as its attempts succeed, fewer as they hang, and others theirs whatever becomes of it.
func TestWindow(t *testing.T) {
	b := newBench(t, Limits{Total: 100, PerNamespace: 16, First: 8})
	if n := b.come("team", 40); n != 8 {
		t.Fatalf("%d come at first", n)
	}
	b.calls()
	for range 20 {
		b.Succeeded("team", b.now)
	}
	if n := len(b.calls()); n != 8 || b.Used() != 16 || b.Window("team") != 16 {
		t.Errorf("%d are called when others have succeeded, %d places are used", n, b.Used())
	}
	for _, want := range []int{8, 4, 4} {
		b.Hung("team")
		if got := b.Window("team"); got != want {
			t.Errorf("the window is %d, want %d", got, want)
		}
	}
	// What it has it keeps.
	if b.Used() != 16 {
		t.Errorf("%d places are used", b.Used())
	}
	for i := range 16 {
		b.Leave(name("team", fmt.Sprintf("b-%04d", i)), b.now)
	}
	if n := len(b.calls()); n != 4 || b.Used() != 4 {
		t.Errorf("%d were called, %d places are used", n, b.Used())
	}
	b.Succeeded("team", b.now)
	if n := len(b.calls()); n != 1 {
		t.Errorf("%d were called after one success", n)
	}
	if n := b.come("other", 40); n != 8 {
		t.Errorf("%d of another namespace come", n)
	}
}

// What is known of a namespace that hangs outlasts its pauses; of others nothing is kept.
func TestWindowOfWhoPauses(t *testing.T) {
	b := newBench(t, Limits{Total: 100, PerNamespace: 16, First: 8})
	for _, namespace := range []string{"hangs", "fares-well"} {
		b.ask(namespace, 0, "")
	}
	b.Hung("hangs")
	b.Succeeded("fares-well", b.now)
	for _, namespace := range []string{"hangs", "fares-well"} {
		b.Leave(name(namespace, "b-0000"), b.now)
	}
	if len(b.spaces) != 1 || b.come("hangs", 40) != 4 || b.come("fares-well", 40) != 8 {
		t.Errorf("%d namespaces are known, %d places are used", len(b.spaces), b.Used())
	}
	for i := range 40 {
		b.Leave(name("hangs", fmt.Sprintf("b-%04d", i)), b.now)
		b.Leave(name("fares-well", fmt.Sprintf("b-%04d", i)), b.now)
	}
	for range 4 {
		b.Succeeded("hangs", b.now)
	}
	if len(b.spaces) != 0 {
		t.Errorf("%d namespaces are known", len(b.spaces))
	}
}

// Whose last attempt hung waits behind the others of its namespace, whoever has waited longer, and knows it.
func TestWhoHungComesLast(t *testing.T) {
	b := newBench(t, Limits{Total: 1, PerNamespace: 1})
	b.Hold(name("team", "runs"), "pod", b.now)
	for i, bundle := range []string{"hung", "fresh-a", "fresh-b"} {
		b.Ask(name("team", bundle), Claim{Since: start.AddDate(0, 0, i), Hung: bundle == "hung"}, b.now)
	}
	var got []string
	for _, leaves := range []string{"runs", "fresh-a", "fresh-b"} {
		b.Leave(name("team", leaves), b.now)
		for _, called := range b.calls() {
			got = append(got, called.Name)
		}
	}
	if want := []string{"fresh-a", "fresh-b", "hung"}; !slices.Equal(got, want) {
		t.Errorf("they came as %q", got)
	}
}

// However many others there are, who hung is tried again.
func TestWhoHungIsNotStarved(t *testing.T) {
	b := newBench(t, Limits{Total: 1, PerNamespace: 1})
	last := name("team", "runs")
	b.Hold(last, "pod", b.now)
	for _, hung := range []string{"hung-a", "hung-b"} {
		b.Ask(name("team", hung), Claim{Since: start, Hung: true}, b.now)
	}
	var came []int
	for i := range 16 {
		b.ask("team", 2*i, "")
		b.ask("team", 2*i+1, "")
		b.Leave(last, b.now)
		last = b.calls()[0]
		b.Ask(last, Claim{Since: b.now}, b.now)
		if strings.HasPrefix(last.Name, "hung") {
			came = append(came, i)
		}
	}
	if !slices.Equal(came, []int{3, 7}) {
		t.Errorf("those that hung came as number %v", came)
	}
}

// A claim can change while it waits.
func TestWhoHungWhileItWaits(t *testing.T) {
	b := newBench(t, Limits{Total: 1, PerNamespace: 1})
	b.Hold(name("team", "runs"), "pod", b.now)
	for _, hung := range []bool{false, true, false, true} {
		b.Ask(name("team", "first"), Claim{Since: start, Hung: hung}, b.now)
		b.Ask(name("team", "second"), Claim{Since: start.AddDate(0, 0, 1)}, b.now)
		want := 1
		if hung {
			want = 2
		}
		if position, of := b.Position(name("team", "first")); position != want || of != 2 {
			t.Errorf("hung is %t: it is number %d of %d", hung, position, of)
		}
	}
}
