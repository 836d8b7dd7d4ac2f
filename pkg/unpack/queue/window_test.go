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

func (b *bench) window(namespace string) int {
	places, narrow := b.Window(namespace)
	if want := places < b.limits.First; narrow != want {
		b.t.Errorf("the window of %s is %d, and narrow is %t", namespace, places, narrow)
	}
	return places
}

// A namespace has more places as its attempts succeed, fewer as they hang, and others theirs whatever becomes of it.
func TestWindow(t *testing.T) {
	b := newBench(t, Limits{Total: 100, PerNamespace: 16, First: 8})
	if n := b.come("team", 40); n != 8 {
		t.Fatalf("%d come at first", n)
	}
	b.calls()
	for range 20 {
		b.Started("team", b.now)
	}
	if n := len(b.calls()); n != 8 || b.Used() != 16 || b.window("team") != 16 {
		t.Errorf("%d are called when pods have started, %d places are used", n, b.Used())
	}
	for _, want := range []int{8, 4, 4} {
		b.Hung("team", b.now)
		if got := b.window("team"); got != want {
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
	b.Started("team", b.now)
	if n := len(b.calls()); n != 1 {
		t.Errorf("%d were called after one has started", n)
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
	b.Hung("hangs", b.now)
	b.Started("fares-well", b.now)
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
		b.Started("hangs", b.now)
	}
	if len(b.spaces) != 0 {
		t.Errorf("%d namespaces are known", len(b.spaces))
	}
}

// A place is taken before another is left, with which the namespace would be forgotten.
func TestWindowOutlastsTheChangeOfPlaces(t *testing.T) {
	b := newBench(t, Limits{Total: 100, PerNamespace: 16, First: 8})
	b.ask("team", 0, "")
	for range 8 {
		b.Started("team", b.now)
	}
	b.Hold(name("team", "b-0000"), "pod", b.now)
	if got := b.window("team"); got != 16 || b.Used() != 1 {
		t.Errorf("the window is %d, %d places are used", got, b.Used())
	}
}

// What is known of namespaces that hang is forgotten when they pause for long.
func TestWindowIsForgotten(t *testing.T) {
	b := newBench(t, Limits{Total: 100, PerNamespace: 16, First: 8})
	for n := range 100 {
		b.Hung(fmt.Sprint("gone-", n), b.now)
	}
	b.ask("busy", 0, "")
	b.Hung("busy", b.now)
	if b.Narrowed() != 101 {
		t.Errorf("%d are narrowed", b.Narrowed())
	}
	b.now = b.now.Add(forget)
	if may := b.Hung("other", b.now); may != 4 || b.Narrowed() != 2 || b.window("busy") != 4 || b.window("gone-0") != 8 {
		t.Errorf("%d are narrowed, windows are %d, %d and %d", b.Narrowed(), may, b.window("busy"), b.window("gone-0"))
	}
}

// A place is wanted of who has one only if somebody gets it when that is left.
func TestWantedInAWindow(t *testing.T) {
	for used, want := range map[int]bool{3: false, 4: true, 5: false, 8: false} {
		b := newBench(t, Limits{Total: 100, PerNamespace: 16, First: 8})
		for n := range used {
			b.Hold(name("team", fmt.Sprintf("b-%04d", n)), fmt.Sprint("pod-", n), b.now)
		}
		b.Hung("team", b.now)
		if used >= 4 {
			if turn := b.ask("team", 100, ""); turn.Come || turn.Soon {
				t.Errorf("%d are used, and one comes: %+v", used, turn)
			}
		}
		if got := b.Wanted(name("team", "b-0000")); got != want {
			t.Errorf("%d are used: a place is wanted: %t", used, got)
		}
		b.Leave(name("team", "b-0000"), b.now)
		if got := len(b.calls()) > 0; got != want {
			t.Errorf("%d were used: somebody is called: %t", used, got)
		}
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
