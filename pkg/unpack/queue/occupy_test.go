// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/client-go/tools/cache"
)

// A place with a pod is nobody else's before the pod is gone, whatever becomes of its bundle.
func TestPodKeepsItsPlace(t *testing.T) {
	b := newBench(t, Limits{Total: 3, PerNamespace: 1})
	if !b.ask("a", 0, "").Come {
		t.Fatal("the first one does not come")
	}
	b.Occupy("a", "pod-0") // may be heard of before its attempt is
	b.Hold(name("a", "b-0000"), "pod-0", b.now)
	b.Leave(name("a", "b-0000"), b.now)
	if b.ask("a", 1, "").Come || b.Used() != 1 {
		t.Fatalf("another one has the place of a pod that is there, %d places are used", b.Used())
	}
	if !b.ask("b", 0, "").Come {
		t.Fatal("another namespace has no place for it")
	}
	b.Vacate("a", "pod-0", b.now)
	if called := b.calls(); !slices.Equal(called, []cache.ObjectName{name("a", "b-0001")}) {
		t.Fatalf("%v were called when the pod was gone", called)
	}
	// The next attempt of a bundle is one more pod.
	b.Hold(name("a", "b-0001"), "pod-1", b.now)
	b.Occupy("a", "pod-1")
	if b.ask("a", 1, "").Come || b.Used() != 2 {
		t.Errorf("a bundle begins anew beside its pod, %d places are used", b.Used())
	}
	b.Vacate("a", "pod-1", b.now)
	if called := b.calls(); !slices.Equal(called, []cache.ObjectName{name("a", "b-0001")}) {
		t.Errorf("%v were called when the pod was gone", called)
	}
	// A pod that goes leaves the place to who has it.
	b.Hold(name("a", "b-0001"), "pod-2", b.now)
	b.Occupy("a", "pod-2")
	b.Vacate("a", "pod-2", b.now)
	if !b.ask("a", 1, "").Come || b.Used() != 2 {
		t.Errorf("a bundle has lost its place with its pod, %d places are used", b.Used())
	}
}

// Pods that no bundle has keep their own namespace from places, and no other one.
func TestPodsOfNobody(t *testing.T) {
	b := newBench(t, Limits{Total: 3, PerNamespace: 2})
	for n := range 10 {
		b.Occupy("a", fmt.Sprint("pod-", n))
	}
	if b.ask("a", 0, "").Come || b.Used() != 2 {
		t.Errorf("%d places are used", b.Used())
	}
	if !b.ask("b", 0, "").Come {
		t.Error("there is no place for another namespace")
	}
}
