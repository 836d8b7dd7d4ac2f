// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

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
			status := unschedulable.DeepCopy()
			status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Now().Truncate(time.Second))
			w.says(&p, *status)
		}
	}
	w.pass(10 * time.Millisecond)
}

// startInOrder starts with a class, and makes bundles one after the other: of those that are there at the start any may be first.
func (w *world) startInOrder(objects []runtime.Object) {
	w.t.Helper()
	w.create(objects[0])
	w.start()
	for _, o := range objects[1:] {
		w.create(o)
		w.pass(time.Millisecond)
	}
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
	inWorld(t, nil, func(w *world) {
		w.config.Limits = queue.Limits{Total: 1, PerNamespace: 1, Share: 1}
		w.startInOrder(someBundles("team-a", 4))
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

// The half minute is that of the pod: an attempt that waited for its pod does not lend its place as soon as it has it.
func TestUnschedulableIsCountedFromTheWordOfTheScheduler(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.config.Limits = queue.Limits{Total: 1, PerNamespace: 1, Share: 1}
		w.setRefusal(errors.New("etcd is away"))
		w.startInOrder(someBundles("team-a", 2))
		w.pass(5 * time.Minute)
		w.setRefusal(nil)
		w.pass(longestRetry + time.Second)
		if pods := len(w.pods()); pods != 1 {
			t.Fatalf("%d pods", pods)
		}
		w.noNode()
		w.pass(unscheduledAfter - 2*time.Second)
		if begun := w.begun("team-a"); !slices.Equal(begun, []string{"b-00"}) {
			t.Fatalf("begun are %v before the pod had its half minute", begun)
		}
		w.pass(3 * time.Second)
		if begun := w.begun("team-a"); !slices.Equal(begun, []string{"b-00", "b-01"}) {
			t.Fatalf("begun are %v after half a minute", begun)
		}
	})
}

// A clock of the scheduler that is ahead keeps no place for ever.
func TestUnschedulableInTheFuture(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.config.Limits = queue.Limits{Total: 1, PerNamespace: 1, Share: 1}
		w.startInOrder(someBundles("team-a", 2))
		status := unschedulable.DeepCopy()
		status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Now().Add(time.Hour))
		w.says(&w.pods()[0], *status)
		w.pass(unscheduledAfter + time.Second)
		if begun := w.begun("team-a"); !slices.Equal(begun, []string{"b-00", "b-01"}) {
			t.Errorf("begun are %v", begun)
		}
	})
}

// failedBefore gives a bundle attempts that have failed, the next of which is due.
func failedBefore(b *v1alpha1.Bundle, failures int32) {
	past := metav1.Unix(1, 0)
	b.Status.Unpack = &v1alpha1.UnpackStatus{
		Generation: b.Generation, Attempt: failures, Nonce: "before", Mode: v1alpha1.UnpackModeImageVolume, ClassUID: testClass().UID,
		StartTime: &past, EndTime: &past, NextAttemptTime: &past, Failures: failures,
		Reason: v1alpha1.ReasonImageNotFound, Message: "there is no such image",
	}
}

// Who makes way says so, and comes back after the pause that his failures ask for.
func TestMakingWay(t *testing.T) {
	for name, test := range map[string]struct {
		failures int32
		slow     bool
		says     string
	}{
		"without a failure":       {says: "the last attempt made way: no node takes the pod"},
		"after a failure":         {failures: 1, says: "the last attempt made way: no node takes the pod"},
		"after too many failures": {failures: 4, slow: true},
	} {
		t.Run(name, func(t *testing.T) {
			objects := someBundles("team-a", 4)
			if test.failures > 0 {
				failedBefore(objects[2].(*v1alpha1.Bundle), test.failures)
			}
			inWorld(t, nil, func(w *world) {
				w.config.Limits = queue.Limits{Total: 1, PerNamespace: 1, Share: 1}
				w.startInOrder(objects)
				w.noNode()
				w.pass(unscheduledAfter + time.Second)
				w.noNode()
				w.pass(unscheduledAfter + time.Second)
				if begun := w.begun("team-a"); !slices.Equal(begun, []string{"b-00", "b-02"}) {
					t.Fatalf("begun are %v", begun)
				}
				u := w.named("team-a", "b-01").Status.Unpack
				pause, want := u.NextAttemptTime.Sub(u.EndTime.Time), w.term.Backoff.Base
				if test.slow {
					want = w.term.Backoff.Slow
				}
				if pause < want || pause > want+2*time.Second || u.Failures != test.failures {
					t.Errorf("it comes back after %s, want %s, with %d failures", pause, want, u.Failures)
				}
				w.pass(15 * time.Second)
				b := w.named("team-a", "b-01")
				c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionUnpacked)
				if !strings.Contains(c.Message, test.says) || strings.Contains(c.Message, "failed") {
					t.Errorf("it says %q", c.Message)
				}
			})
		})
	}
}

// A retry of an attempt whose place is lent waits for a place, and its pod does not: else there would be one more beside those that
// have a place and those that lend theirs.
func TestRetryOfWhatLendsItsPlace(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.config.Limits = queue.Limits{Total: 1, PerNamespace: 1, Share: 1}
		w.startInOrder(someBundles("team-a", 4))
		w.noNode()
		w.pass(unscheduledAfter + time.Second)
		first := w.named("team-a", "b-00")
		first.Annotations = map[string]string{v1alpha1.AnnotationRetry: "1"}
		if err := w.store(first); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Second)
		first = w.named("team-a", "b-00")
		if u := first.Status.Unpack; open(u) || u.Failures != 0 || u.Reason != v1alpha1.ReasonQueued || len(w.pods()) != 1 {
			t.Errorf("%d pods, and %s", len(w.pods()), describe(first))
		}
		w.noNode()
		w.pass(unscheduledAfter + time.Second)
		if begun := w.begun("team-a"); !slices.Equal(begun, []string{"b-00", "b-01"}) || len(w.pods()) != 2 {
			t.Errorf("begun are %v, with %d pods", begun, len(w.pods()))
		}
		if first = w.named("team-a", "b-00"); first.Status.LastHandledRetry != "1" || first.Status.Unpack.Attempt != 2 {
			t.Errorf("the retry was not made: %s", describe(first))
		}
	})
}

// Where no node takes any pod there are never more than twice as many as places, whatever time is over.
func TestUnschedulablePodsAreTwiceAsManyAtMost(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.config.Limits = queue.Limits{Total: 1, PerNamespace: 1, Share: 4}
		w.startInOrder(someBundles("team-a", 10))
		w.committed(w.named("team-a", "b-00"))
		w.pass(time.Second)
		if p, _ := w.shared(); p == nil {
			t.Fatal("no pod is shared")
		}
		alone := map[types.UID]bool{}
		for range 150 {
			w.noNode()
			w.pass(10 * time.Second)
			pods := w.pods()
			if len(pods) > 2 {
				t.Fatalf("there are %d pods", len(pods))
			}
			for _, p := range pods {
				if len(p.OwnerReferences) == 1 {
					alone[p.UID] = true
				}
			}
		}
		if len(alone) < 3 {
			t.Errorf("%d bundles went on alone in 25 minutes", len(alone))
		}
		for _, b := range w.all("team-a")[1:] {
			if u := b.Status.Unpack; u != nil && u.Failures > 0 && !strings.Contains(u.Message, "no node takes") {
				t.Errorf("%s", describe(b))
			}
		}
	})
}

// A refresh that makes way leaves what is served, and comes back.
func TestRefreshMakesWayForAPlace(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.config.Limits = queue.Limits{Total: 1, PerNamespace: 1, Share: 1}
		w.startInOrder(started(testClass(), taggedBundle()))
		w.ask("1")
		w.says(w.lookingPod(), found(otherImage))
		w.pass(time.Second)
		w.noNode()
		w.create(nth("team-a", 0))
		w.create(nth("team-a", 1))
		w.pass(unscheduledAfter + time.Second)
		if b := w.bundle(); !open(b.Status.Unpack) || len(w.begun("team-a")) != 2 {
			t.Fatalf("begun are %v: %s", w.begun("team-a"), describe(b))
		}
		w.edit(func(b *v1alpha1.Bundle) { b.Annotations[v1alpha1.AnnotationRetry] = "1" })
		w.pass(time.Second)
		w.served()
		if b := w.bundle(); open(b.Status.Unpack) || b.Status.Unpack.Failures != 0 || b.Status.LastHandledRetry != "1" {
			t.Errorf("the attempt goes on without a place: %s", describe(b))
		}
		for range 2 {
			for _, name := range w.begun("team-a") {
				w.committed(w.named("team-a", name))
			}
			w.pass(time.Second)
		}
		w.says(w.lookingPod(), found(otherImage))
		w.pass(time.Second)
		w.served()
		if u := w.bundle().Status.Unpack; !open(u) || !u.Refresh || u.ResolvedReference != otherImage || u.Attempt != 3 {
			t.Errorf("the refresh does not come back: %s", describe(w.bundle()))
		}
	})
}
