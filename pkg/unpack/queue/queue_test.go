// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/cache"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// bench is a queue, and who was called.
type bench struct {
	*Queue
	t      *testing.T
	now    time.Time
	called []cache.ObjectName
}

func newBench(t *testing.T, limits Limits) *bench {
	b := &bench{t: t, now: start}
	b.Queue = New(limits, func(name cache.ObjectName) { b.called = append(b.called, name) })
	return b
}

func name(namespace, bundle string) cache.ObjectName { return cache.NewObjectName(namespace, bundle) }

// ask claims a place for the n-th bundle of a namespace, which has waited since second n.
func (b *bench) ask(namespace string, n int, kind string) Turn {
	return b.Ask(name(namespace, fmt.Sprintf("b-%04d", n)), Claim{Since: start.Add(time.Duration(n) * time.Second), Kind: kind}, b.now)
}

// calls returns who was called, once.
func (b *bench) calls() []cache.ObjectName {
	called := b.called
	b.called = nil
	return called
}

// One place after the other goes round the namespaces, and within each to who has waited longest, in whichever order they came.
func TestNamespacesTakeTurns(t *testing.T) {
	b := newBench(t, Limits{Total: 1, PerNamespace: 1})
	b.Hold(name("other", "runs"), "pod", b.now)
	for n := 150; n > 0; n-- {
		b.ask("big", n, "")
	}
	for n := 1; n <= 3; n++ {
		b.ask("small-a", n, "")
		b.ask("small-b", n, "")
	}
	if position, of := b.Position(name("big", "b-0017")); position != 17 || of != 150 || b.Waiting() != 156 {
		t.Errorf("%d of %d, %d wait", position, of, b.Waiting())
	}
	var got []string
	b.Leave(name("other", "runs"), b.now)
	for range 9 {
		called := b.calls()
		if len(called) != 1 {
			t.Fatalf("%v were called for one place", called)
		}
		got = append(got, called[0].String())
		if turn := b.Ask(called[0], Claim{Since: b.now}, b.now); !turn.Come || len(turn.With) > 0 {
			t.Fatalf("the answer to %v was %+v", called[0], turn)
		}
		b.Leave(called[0], b.now)
	}
	want := []string{
		"big/b-0001", "small-a/b-0001", "small-b/b-0001", "big/b-0002", "small-a/b-0002", "small-b/b-0002",
		"big/b-0003", "small-a/b-0003", "small-b/b-0003",
	}
	if !slices.Equal(got, want) {
		t.Errorf("they came as\n%q, want\n%q", got, want)
	}
}

func TestLimits(t *testing.T) {
	b := newBench(t, Limits{Total: 5, PerNamespace: 2})
	come := map[string]int{}
	for _, namespace := range []string{"a", "b", "c"} {
		for n := range 4 {
			if b.ask(namespace, n, "").Come {
				come[namespace]++
			}
		}
	}
	if come["a"] != 2 || come["b"] != 2 || come["c"] != 1 || b.Used() != 5 || b.Waiting() != 7 {
		t.Errorf("%v came, %d places are used, %d wait", come, b.Used(), b.Waiting())
	}
	// A place of a leaves room for the next of a, or of c: of c, which has fewer than it may and whose turn it is.
	b.Leave(name("a", "b-0000"), b.now)
	if called := b.calls(); !slices.Equal(called, []cache.ObjectName{name("c", "b-0001")}) && !slices.Equal(called, []cache.ObjectName{name("a", "b-0002")}) {
		t.Errorf("%v were called", called)
	}
	if b.Used() != 5 {
		t.Errorf("%d places are used", b.Used())
	}
}

// What runs when a server starts has its places, more of them than it may or not.
func TestHoldCountsWhatRuns(t *testing.T) {
	b := newBench(t, Limits{Total: 2, PerNamespace: 2, Share: 4})
	for n := range 3 {
		b.Hold(name("a", fmt.Sprint("shared-", n)), "pod-1", b.now)
	}
	b.Hold(name("a", "x"), "pod-2", b.now)
	b.Hold(name("a", "y"), "pod-3", b.now)
	if b.Used() != 3 {
		t.Fatalf("%d places are used", b.Used())
	}
	if b.ask("b", 1, "").Come {
		t.Error("there was a place beyond the limit")
	}
	b.Leave(name("a", "x"), b.now)
	b.Leave(name("a", "shared-0"), b.now)
	b.Leave(name("a", "shared-1"), b.now)
	if called := b.calls(); len(called) > 0 {
		t.Fatalf("%v were called while the places are taken", called)
	}
	b.Leave(name("a", "shared-2"), b.now)
	if called := b.calls(); !slices.Equal(called, []cache.ObjectName{name("b", "b-0001")}) {
		t.Errorf("%v were called", called)
	}
}

func TestSharing(t *testing.T) {
	limits := Limits{Total: 10, PerNamespace: 10, Share: 3, Images: 3, Gather: time.Second}
	t.Run("the first of a namespace does not wait for others", func(t *testing.T) {
		b := newBench(t, limits)
		if turn := b.ask("a", 1, "k"); !turn.Come || len(turn.With) > 0 {
			t.Errorf("the answer was %+v", turn)
		}
	})
	t.Run("later ones gather", func(t *testing.T) {
		b := newBench(t, limits)
		b.Hold(name("a", "runs"), "pod", b.now)
		if turn := b.ask("a", 1, "k"); turn.Come || turn.Again != time.Second {
			t.Fatalf("the answer was %+v", turn)
		}
		b.now = b.now.Add(300 * time.Millisecond)
		if turn := b.ask("a", 2, "k"); turn.Come || turn.Again != 700*time.Millisecond {
			t.Fatalf("the answer was %+v", turn)
		}
		b.now = b.now.Add(700 * time.Millisecond)
		if turn := b.ask("a", 1, "k"); !turn.Come || !slices.Equal(turn.With, []cache.ObjectName{name("a", "b-0002")}) {
			t.Fatalf("the answer was %+v", turn)
		}
		if turn := b.ask("a", 2, "k"); turn.Come || turn.Again != 0 {
			t.Errorf("the answer to the one that goes with it was %+v", turn)
		}
		if b.Used() != 2 {
			t.Errorf("%d places are used", b.Used())
		}
	})
	t.Run("no longer than until they are enough, of their own kind", func(t *testing.T) {
		b := newBench(t, limits)
		b.Hold(name("a", "runs"), "pod", b.now)
		for n, kind := range []string{"k", "other", "k"} {
			if turn := b.ask("a", n, kind); turn.Come {
				t.Fatalf("the answer was %+v", turn)
			}
		}
		if turn := b.ask("a", 3, "k"); turn.Come {
			t.Fatalf("the answer was %+v", turn)
		}
		if called := b.calls(); !slices.Equal(called, []cache.ObjectName{name("a", "b-0000")}) {
			t.Fatalf("%v were called", called)
		}
		if turn := b.ask("a", 0, "k"); !turn.Come || !slices.Equal(turn.With, []cache.ObjectName{name("a", "b-0002"), name("a", "b-0003")}) {
			t.Errorf("the answer was %+v", turn)
		}
	})
	t.Run("with others of few images", func(t *testing.T) {
		b := newBench(t, Limits{Total: 10, PerNamespace: 10, Share: 4, Images: 2})
		b.Hold(name("z", "runs"), "pod", b.now)
		b.limits.Total = 1
		for n, image := range []string{"i", "j", "k", "i", "k", "j", "i"} {
			b.Ask(name("a", fmt.Sprintf("b-%04d", n)), Claim{Since: start.Add(time.Duration(n) * time.Second), Kind: "k", Image: image}, b.now)
		}
		b.Leave(name("z", "runs"), b.now)
		if turn := b.ask("a", 0, "k"); !turn.Come || !slices.Equal(turn.With, []cache.ObjectName{name("a", "b-0001"), name("a", "b-0003"), name("a", "b-0006")}) {
			t.Errorf("the answer was %+v", turn)
		}
		b.Leave(name("a", "b-0001"), b.now)
		b.Hold(name("a", "b-0000"), "pod", b.now)
		for _, n := range []int{3, 6, 0} {
			b.Leave(name("a", fmt.Sprintf("b-%04d", n)), b.now)
		}
		if turn := b.ask("a", 2, "k"); !turn.Come || !slices.Equal(turn.With, []cache.ObjectName{name("a", "b-0004"), name("a", "b-0005")}) {
			t.Errorf("the answer to the one that was left out was %+v", turn)
		}
	})
	t.Run("with those of its own image first", func(t *testing.T) {
		b := newBench(t, Limits{Total: 1, PerNamespace: 1, Share: 4, Images: 4})
		b.Hold(name("z", "runs"), "pod", b.now)
		for n := range 12 {
			b.Ask(name("a", fmt.Sprintf("b-%04d", n)), Claim{Since: start.Add(time.Duration(n) * time.Second), Kind: "k", Image: string(rune('i' + n%4))}, b.now)
		}
		// Three of each of four images: 0 4 8 1, then 2 6 10 3, then what is left.
		for _, want := range [][]int{{0, 1, 4, 8}, {2, 3, 6, 10}, {5, 7, 9, 11}} {
			b.Leave(name("z", "runs"), b.now)
			turn := b.ask("a", want[0], "k")
			got := append([]cache.ObjectName{name("a", fmt.Sprintf("b-%04d", want[0]))}, turn.With...)
			for i, member := range got {
				if len(got) != len(want) || member != name("a", fmt.Sprintf("b-%04d", want[i])) {
					t.Fatalf("%v share a place, want %v", got, want)
				}
				b.Hold(member, "pod", b.now)
			}
			b.Hold(name("z", "runs"), "pod", b.now)
			for _, member := range got {
				b.Leave(member, b.now)
			}
		}
	})
	t.Run("one that shares with nobody goes alone", func(t *testing.T) {
		b := newBench(t, limits)
		b.Hold(name("a", "runs"), "pod", b.now)
		b.ask("a", 2, "k")
		if turn := b.ask("a", 1, ""); !turn.Come || len(turn.With) > 0 {
			t.Errorf("the answer was %+v", turn)
		}
	})
}

// Places are given no faster than Pace lets them, and go to who waits by then.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Limits{Total: 10, PerNamespace: 10, Share: 4, Images: 2})
		left := time.Second
		var paced []int
		b.limits.Pace = func(images int, _ time.Time) time.Duration { paced = append(paced, images); return left }
		ask := func(n int, image string, pulled bool) Turn {
			return b.Ask(name("a", fmt.Sprintf("b-%04d", n)), Claim{Since: start.Add(time.Duration(n) * time.Second), Kind: "k", Image: image, Pulled: pulled}, b.now)
		}
		for n, image := range []string{"i", "j", "i"} {
			if turn := ask(n, image, true); turn.Come || turn.Again != 0 || !turn.Soon {
				t.Fatalf("the answer was %+v", turn)
			}
		}
		time.Sleep(999 * time.Millisecond)
		synctest.Wait()
		if called := b.calls(); len(called) > 0 {
			t.Fatalf("%v were called too early", called)
		}
		left = 0
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if called := b.calls(); !slices.Equal(called, []cache.ObjectName{name("a", "b-0000")}) {
			t.Fatalf("%v were called", called)
		}
		if turn := ask(0, "i", true); !turn.Come || len(turn.With) != 2 {
			t.Errorf("the answer was %+v", turn)
		}
		if want := []int{1, 2}; !slices.Equal(paced, want) {
			t.Errorf("it was asked for %v images, want %v", paced, want)
		}
		// What no kubelet pulls waits behind nobody who does.
		left = time.Second
		if turn := ask(3, "i", true); turn.Come {
			t.Errorf("the answer was %+v", turn)
		}
		if turn := b.Ask(name("z", "direct"), Claim{Since: start, Image: "i"}, b.now); !turn.Come {
			t.Errorf("one that no kubelet pulls waits: %+v", turn)
		}
		// Nor does who needs few images overtake who came before.
		left = 0
		if turn := b.Ask(name("y", "small"), Claim{Since: start, Image: "i", Pulled: true}, b.now); turn.Come || !turn.Soon {
			t.Errorf("the answer was %+v", turn)
		}
		b.calls()
		time.Sleep(time.Second)
		synctest.Wait()
		if called := b.calls(); !slices.Equal(called, []cache.ObjectName{name("a", "b-0003"), name("y", "small")}) {
			t.Errorf("%v were called", called)
		}
	})
}

// A bundle that would gather when it came, but could not since there was no place, hears of one.
func TestGatheringIsToldOfAFreePlace(t *testing.T) {
	b := newBench(t, Limits{Total: 5, PerNamespace: 2, Share: 3, Images: 3, Gather: time.Second})
	b.Hold(name("a", "x"), "pod-1", b.now)
	b.Hold(name("a", "y"), "pod-2", b.now)
	if turn := b.ask("a", 1, "k"); turn.Come || turn.Again != 0 {
		t.Fatalf("the answer was %+v", turn)
	}
	b.Leave(name("a", "x"), b.now)
	if called := b.calls(); !slices.Equal(called, []cache.ObjectName{name("a", "b-0001")}) {
		t.Fatalf("%v were called", called)
	}
	if turn := b.ask("a", 1, "k"); turn.Come || turn.Again != time.Second {
		t.Errorf("the answer was %+v", turn)
	}
}

// When the one that was to act for all of a place goes away, the others wait as before, and are served.
func TestOthersOfAPlaceOutliveItsFirst(t *testing.T) {
	b := newBench(t, Limits{Total: 1, PerNamespace: 1, Share: 3})
	b.Hold(name("z", "runs"), "pod", b.now)
	for n := range 3 {
		b.ask("a", n, "k")
	}
	b.Leave(name("z", "runs"), b.now)
	if called := b.calls(); !slices.Equal(called, []cache.ObjectName{name("a", "b-0000")}) {
		t.Fatalf("%v were called", called)
	}
	b.Leave(name("a", "b-0000"), b.now)
	if called := b.calls(); !slices.Equal(called, []cache.ObjectName{name("a", "b-0001")}) {
		t.Fatalf("%v were called", called)
	}
	if turn := b.ask("a", 1, "k"); !turn.Come || !slices.Equal(turn.With, []cache.ObjectName{name("a", "b-0002")}) {
		t.Errorf("the answer was %+v", turn)
	}
}

// Who has a place with others waits for one of its own; the last one has it alone already.
func TestLeavingASharedPlace(t *testing.T) {
	b := newBench(t, Limits{Total: 1, PerNamespace: 1})
	b.Hold(name("a", "b-0001"), "shared", b.now)
	b.Hold(name("a", "b-0002"), "shared", b.now)
	if turn := b.ask("a", 1, ""); turn.Come {
		t.Fatal("there was a place while another has the only one")
	}
	if turn := b.ask("a", 2, ""); !turn.Come {
		t.Fatal("the last one does not keep the place")
	}
	b.Leave(name("a", "b-0002"), b.now)
	if called := b.calls(); !slices.Equal(called, []cache.ObjectName{name("a", "b-0001")}) {
		t.Fatalf("%v were called", called)
	}
	if turn := b.ask("a", 1, ""); !turn.Come {
		t.Error("the one that was called has no place")
	}
}

// Whatever comes and goes, the limits hold, nobody waits while there is a place, and what is forgotten is forgotten.
func TestAnyOrder(t *testing.T) {
	limits := Limits{Total: 4, PerNamespace: 2, Share: 3}
	for seed := range uint64(50) {
		b, random := newBench(t, limits), rand.New(rand.NewPCG(seed, 0))
		for range 300 {
			who := name(fmt.Sprint("n", random.IntN(4)), fmt.Sprint("b", random.IntN(8)))
			switch random.IntN(6) {
			case 0:
				b.Leave(who, b.now)
			case 1:
				b.Lend(who, b.now)
			case 2:
				b.Occupy(who.Namespace, who.Name)
			case 3:
				b.Vacate(who.Namespace, who.Name, b.now)
			default:
				turn := b.Ask(who, Claim{Since: start.Add(time.Duration(random.IntN(9)) * time.Second), Kind: []string{"", "k"}[random.IntN(2)]}, b.now)
				for _, other := range turn.With {
					b.Hold(other, who.Name, b.now)
				}
				if turn.Come {
					b.Hold(who, who.Name, b.now)
				}
			}
			b.check(limits)
		}
		for n := range 4 {
			for i := range 8 {
				b.Leave(name(fmt.Sprint("n", n), fmt.Sprint("b", i)), b.now)
				b.Vacate(fmt.Sprint("n", n), fmt.Sprint("b", i), b.now)
			}
		}
		if b.Used() != 0 || b.lent != 0 || b.Waiting() != 0 || len(b.spaces)+len(b.places)+len(b.held)+len(b.lined)+len(b.turns)+len(b.pods) != 0 {
			t.Fatalf("seed %d: left are %+v", seed, b.Queue)
		}
	}
}

func (b *bench) check(limits Limits) {
	b.t.Helper()
	used, lent := map[string]int{}, map[string]int{}
	nobodys := map[string]int{} // places with a pod alone, which can be more than there may be
	for _, p := range b.places {
		if len(p.members) == 0 {
			nobodys[p.namespace]++
			nobodys[""]++
		}
		if p.lent {
			lent[p.namespace]++
		} else {
			used[p.namespace]++
		}
	}
	if len(b.places) != b.Used()+b.lent || b.Used() > limits.Total+nobodys[""] || b.lent > limits.Total {
		b.t.Fatalf("%d places are used and %d lent, which are %d", b.Used(), b.lent, len(b.places))
	}
	for namespace, s := range b.spaces {
		if s.lent != lent[namespace] || s.lent > limits.PerNamespace {
			b.t.Fatalf("namespace %s lends %d places, which are %d", namespace, s.lent, lent[namespace])
		}
		if s.used != used[namespace] || s.used > limits.PerNamespace+nobodys[namespace] {
			b.t.Fatalf("namespace %s uses %d places, which are %d", namespace, s.used, used[namespace])
		}
		if len(s.waiting) > 0 && s.used < limits.PerNamespace && b.Used() < limits.Total {
			b.t.Fatalf("namespace %s waits, and there is a place", namespace)
		}
		if !slices.IsSortedFunc(s.waiting, order) {
			b.t.Fatalf("namespace %s is not in order", namespace)
		}
	}
}

func BenchmarkTenThousandInOneNamespace(b *testing.B) {
	for b.Loop() {
		q := New(Limits{Total: 1, PerNamespace: 1}, func(cache.ObjectName) {})
		for n := range 10_000 {
			q.Ask(name("a", fmt.Sprint(n)), Claim{Since: start.Add(time.Duration(n) * time.Second)}, start)
		}
		for n := range 10_000 {
			q.Leave(name("a", fmt.Sprint(n)), start)
		}
	}
}

// TestFirstOfACalledPlaceStaysWhereItIs has the bundle that was called, with others, turn out to have a place still.
func TestFirstOfACalledPlaceStaysWhereItIs(t *testing.T) {
	now := time.Unix(100, 0)
	q := New(Limits{Total: 2, PerNamespace: 1, Share: 4, Images: 5}, func(cache.ObjectName) {})
	named := func(s string) cache.ObjectName { return cache.NewObjectName("ns", s) }
	ask := func(name string, since int64, leave bool) Turn {
		return q.Ask(named(name), Claim{Since: time.Unix(since, 0), Kind: "k", Image: name, Leave: leave}, now)
	}
	q.Hold(named("x"), "pod", now)
	q.Hold(named("o"), "pod", now)
	ask("x", 0, true)
	ask("y", 1, false)
	ask("z", 2, false)
	q.Leave(named("o"), now)       // the place is free: x is called, with y and z
	q.Hold(named("x"), "pod", now) // whose pod has got on after all
	q.Leave(named("x"), now)
	for _, name := range []string{"y", "z"} {
		ask(name, 1, false)
	}
	if turn := ask("y", 1, false); !turn.Come {
		t.Errorf("y does not come: %+v, with %d places taken", turn, q.Used())
	}
}

// A place that is lent does not count, and there are no more of them than there are places.
func TestLend(t *testing.T) {
	b := newBench(t, Limits{Total: 3, PerNamespace: 1})
	if !b.ask("a", 0, "").Come || b.Lend(name("a", "b-0000"), b.now) {
		t.Fatal("a place is lent before it is known what became of it")
	}
	b.Hold(name("a", "b-0000"), "pod-0", b.now)
	if b.ask("a", 1, "").Come || !b.Wanted(name("a", "b-0000")) {
		t.Fatal("the place is not what keeps the next one")
	}
	for range 2 { // the second time it is so already
		if !b.Lend(name("a", "b-0000"), b.now) || b.Wanted(name("a", "b-0000")) {
			t.Fatal("the place is not lent")
		}
	}
	if called := b.calls(); !slices.Equal(called, []cache.ObjectName{name("a", "b-0001")}) {
		t.Fatalf("%v were called to it", called)
	}
	b.Hold(name("a", "b-0001"), "pod-1", b.now)
	b.ask("a", 2, "")
	if b.Lend(name("a", "b-0001"), b.now) || !b.Wanted(name("a", "b-0001")) || b.Used() != 1 {
		t.Error("a namespace lends more places than it may have")
	}
	// What is scheduled after all counts, even if that is more than there may be, and makes way for nobody.
	b.Hold(name("a", "b-0000"), "pod-0", b.now)
	b.Leave(name("a", "b-0001"), b.now)
	if called := b.calls(); len(called) != 0 || b.Used() != 1 {
		t.Errorf("%v were called, %d places are used", called, b.Used())
	}
	// Nobody wants the place of a namespace whose own bundles do not wait, as long as there are others.
	b.Hold(name("b", "b-0000"), "pod-0", b.now)
	if b.Wanted(name("b", "b-0000")) || !b.Wanted(name("a", "b-0000")) {
		t.Error("who waits would not have the place that is wanted, or would not have the one that is not")
	}
	// Who begins anew with a place that is lent waits for one that counts.
	b.Lend(name("a", "b-0000"), b.now)
	if b.ask("a", 0, "").Come || b.Used() != 2 {
		t.Errorf("the next attempt has the place that is lent, %d places are used", b.Used())
	}
}
