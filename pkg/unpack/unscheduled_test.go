// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/queue"
)

// unschedulable is what the scheduler says of a pod that no node takes.
var unschedulable = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
	{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/1 nodes: 1 Insufficient cpu"},
}}

// noNode lets no node take any of the pods that there are.
func (w *world) noNode() {
	w.t.Helper()
	for _, p := range w.pods() {
		if len(p.Status.Conditions) == 0 {
			w.says(&p, unschedulable)
		}
	}
	w.pass(10 * time.Millisecond)
}

// begun are the names of the bundles of a namespace whose attempts run.
func (w *world) begun(namespace string) []string {
	w.t.Helper()
	var names []string
	for _, b := range w.all(namespace) {
		if open(b.Status.Unpack) {
			names = append(names, b.Name)
		}
	}
	return names
}

// A pod that no node takes keeps others from theirs for half a minute, and not for all the time that its class gives it.
func TestUnschedulableLendItsPlace(t *testing.T) {
	inWorld(t, someBundles("team-a", 4), func(w *world) {
		w.config.Limits = queue.Limits{Total: 1, PerNamespace: 1, Share: 1}
		w.start()
		w.pass(time.Second)
		w.noNode()
		w.pass(unscheduledAfter - 2*time.Second)
		if begun := w.begun("team-a"); !slices.Equal(begun, []string{"b-00"}) {
			t.Fatalf("begun are %v before half a minute is over", begun)
		}
		w.pass(2 * time.Second)
		if begun := w.begun("team-a"); !slices.Equal(begun, []string{"b-00", "b-01"}) {
			t.Fatalf("begun are %v after half a minute", begun)
		}
		// The second one is one too many that no node takes: it makes way, and what was to come comes.
		w.noNode()
		w.pass(unscheduledAfter + time.Second)
		if begun := w.begun("team-a"); !slices.Equal(begun, []string{"b-00", "b-02"}) {
			t.Fatalf("begun are %v after a minute", begun)
		}
		second := w.named("team-a", "b-01")
		if u := second.Status.Unpack; u.Failures != 0 || u.Reason != v1alpha1.ReasonUnschedulable || len(w.pods()) != 2 {
			t.Errorf("who made way: %s; there are %d pods", describe(second), len(w.pods()))
		}
		w.committed(w.named("team-a", "b-02"))
		w.pass(time.Second)
		w.committed(w.named("team-a", "b-03"))
		w.pass(unscheduledAfter)
		second = w.named("team-a", "b-01")
		if u := second.Status.Unpack; !open(u) || u.Attempt != 2 {
			t.Fatalf("who made way does not come back: %s", describe(second))
		}
		// Nobody waits any more, so it stays.
		w.noNode()
		w.pass(3 * unscheduledAfter)
		if u := w.named("team-a", "b-01").Status.Unpack; !open(u) || u.Attempt != 2 || len(w.pods()) != 2 {
			t.Errorf("it makes way for nobody: %s", describe(w.named("team-a", "b-01")))
		}
		// One that is scheduled after all goes on.
		for _, p := range w.pods() {
			w.says(&p, corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
				{Name: "unpack", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
			}})
		}
		w.pass(time.Second)
		for _, name := range []string{"b-00", "b-01"} {
			if b := w.named("team-a", name); !open(b.Status.Unpack) || b.Status.Unpack.Reason != "" {
				t.Errorf("%s: %s", name, describe(b))
			}
		}
		if used := w.term.places.Used(); used != 2 {
			t.Errorf("%d places are used", used)
		}
	})
}

// A shared pod that no node takes makes way with all its bundles, which say why when they wait again.
func TestUnschedulableSharedPodMakesWay(t *testing.T) {
	inWorld(t, append(someBundles("team-a", 6), nth("team-b", 9)), func(w *world) {
		w.config.Limits = queue.Limits{Total: 1, PerNamespace: 1, Share: 3}
		w.start()
		w.pass(time.Second)
		served := 0
		for range 8 {
			w.noNode()
			w.pass(unscheduledAfter / 2)
			if b := w.named("team-b", "b-09"); open(b.Status.Unpack) && b.Status.Unpack.PodUID != "" {
				w.committed(b)
				served++
				break
			}
			if pods := len(w.pods()); pods > 2 {
				t.Fatalf("there are %d pods", pods)
			}
		}
		if served == 0 {
			t.Fatal("the other namespace had no turn in four minutes")
		}
		w.pass(10 * time.Second)
		for _, b := range w.all("team-a") {
			c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionUnpacked)
			if b.Status.Unpack != nil && b.Status.Unpack.Failures > 0 || c.Reason != v1alpha1.ReasonUnschedulable && c.Reason != v1alpha1.ReasonQueued && c.Reason != v1alpha1.ReasonUnpacking {
				t.Errorf("%s", describe(b))
			}
		}
	})
}
