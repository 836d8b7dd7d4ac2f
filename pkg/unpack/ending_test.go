// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/pod"
	"rukpak.io/apiserver/pkg/unpack/queue"
)

// keepPods lets a node keep pods that are told to end, as one does whose runtime does not give up pulling.
func (w *world) keepPods() {
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	w.kube.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		d := action.(clienttesting.DeleteAction)
		obj, err := w.kube.Tracker().Get(pods, d.GetNamespace(), d.GetName())
		if err != nil {
			return true, nil, err
		}
		p := obj.(*corev1.Pod).DeepCopy()
		if p.Spec.NodeName == "" {
			return false, nil, nil
		}
		p.DeletionTimestamp = new(metav1.Now())
		return true, nil, w.kube.Tracker().Update(pods, p, p.Namespace)
	})
}

// onNode lets a node take the pods that there are.
func (w *world) onNode() {
	w.t.Helper()
	for _, p := range w.pods() {
		if p.Spec.NodeName == "" {
			w.says(&p, corev1.PodStatus{Phase: corev1.PodPending})
		}
	}
}

// hang lets attempts of so many bundles run until their time is over, on a node that keeps their pods, and a moment longer.
func (w *world) hang(bundles int, longer time.Duration) {
	w.t.Helper()
	w.keepPods()
	w.startInOrder(someBundles("team-a", bundles))
	w.onNode()
	w.pass(pod.Timeout(testClass()) + longer)
}

// gone ends a pod that its node has kept.
func (w *world) gone(p *corev1.Pod) {
	w.t.Helper()
	if err := w.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), p.Namespace, p.Name); err != nil {
		w.t.Fatal(err)
	}
	w.pass(time.Second)
}

// oneGone ends one of the pods that were told to end.
func (w *world) oneGone() {
	w.t.Helper()
	kept := w.pods()
	w.gone(&kept[slices.IndexFunc(kept, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })])
}

// allBegun are the names of the bundles whose attempts run, in two namespaces.
func (w *world) allBegun() []string { return slices.Concat(w.begun("team-a"), w.begun("team-b")) }

// Pods that their node keeps count against their namespace, though their attempts are over, and no other namespace waits for them.
func TestPodThatIsToEndKeepsItsPlace(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.config.Limits = queue.Limits{Total: 4, PerNamespace: 2, Share: 1}
		w.hang(5, 0)
		for _, name := range []string{"b-00", "b-01"} {
			if b := w.named("team-a", name); open(b.Status.Unpack) || b.Status.Unpack.Reason != v1alpha1.ReasonDeadlineExceeded {
				t.Fatal(describe(b))
			}
		}
		w.create(nth("team-b", 0))
		w.pass(time.Second)
		if len(w.begun("team-a")) != 0 || len(w.begun("team-b")) != 1 || len(w.pods()) != 2 {
			t.Fatalf("begun are %v and %v, with %d pods", w.begun("team-a"), w.begun("team-b"), len(w.pods()))
		}
		// Since they hung, there is one at a time now.
		w.oneGone()
		if begun := w.begun("team-a"); len(begun) != 0 {
			t.Fatalf("begun are %v beside a pod that is to end", begun)
		}
		// A node may be lost, and its pods with it: they do not count for ever.
		w.pass(endingTime)
		if begun := w.begun("team-a"); !slices.Equal(begun, []string{"b-02"}) {
			t.Errorf("begun are %v after a long while", begun)
		}
		// It waits for a node, as the bundle of the other namespace did.
		if b := w.named("team-a", "b-00"); !strings.Contains(conditionMessage(b), "; 1 at a time, since pods of the namespace did not start; the last attempt failed: ") {
			t.Errorf("what waits says %q", conditionMessage(b))
		}
	})
}

func conditionMessage(b *v1alpha1.Bundle) string {
	return meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionUnpacked).Message
}

// Bundles of one namespace that hang keep others of it from no more than some of its places: those come first, and what hangs has fewer.
func TestWhatHangsInOneNamespace(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.config.Limits = queue.Limits{Total: 64, PerNamespace: 16, First: 8, Share: 1}
		w.hang(30, time.Minute)
		// What has not been tried yet has three of the four places, and what has failed one.
		w.pass(endingTime)
		begun := w.begun("team-a")
		if want := []string{"b-00", "b-08", "b-09", "b-10"}; !slices.Equal(begun, want) {
			t.Fatalf("begun are %v, want %v", begun, want)
		}
		for range 3 {
			w.onNode()
			w.pass(pod.Timeout(testClass()) + endingTime + time.Minute)
		}
		tried := 0
		for _, b := range w.all("team-a") {
			if b.Status.Unpack != nil {
				tried++
			}
		}
		if tried != 8+4*3 {
			t.Errorf("%d have been tried", tried)
		}
	})
}

func TestNamespaceThatFaresWell(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.config.Limits = queue.Limits{Total: 64, PerNamespace: 3, First: 1, Share: 1}
		w.startInOrder(someBundles("team-a", 8))
		for i, want := range []int{1, 2, 3, 3} {
			if begun := w.begun("team-a"); len(begun) != want {
				t.Errorf("begun are %v after %d have succeeded", begun, i)
			}
			for _, p := range w.pods() {
				if slices.Contains(ownersOf(&p), fmt.Sprintf("b-%02d", i)) {
					w.says(&p, hasStarted())
				}
			}
			w.committed(w.named("team-a", fmt.Sprintf("b-%02d", i)))
			w.pass(time.Second)
		}
	})
}

func ownersOf(p *corev1.Pod) []string {
	var names []string
	for _, o := range p.OwnerReferences {
		names = append(names, o.Name)
	}
	return names
}

// hasStarted is what a node says of a pod that has started.
func hasStarted() corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
		Name: pod.ContainerUnpack, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}}
}

// A namespace loses places for pods that were given up while their node said nothing, and for no others.
func TestWhichPodsHung(t *testing.T) {
	for name, test := range map[string]struct {
		status *corev1.PodStatus // nil is that of a pod without a node
		age    time.Duration
		want   int
	}{
		"hung":                       {&corev1.PodStatus{Phase: corev1.PodPending}, hangTime, 2},
		"hung, says the node":        {ptr.To(waiting("ContainerCreating", "")), hangTime, 2},
		"not for long":               {&corev1.PodStatus{Phase: corev1.PodPending}, hangTime - 2*time.Second, 4},
		"without a node":             {nil, hangTime, 4},
		"an image that is not there": {ptr.To(waiting("ErrImagePull", "not found")), hangTime, 4},
		"a registry that is not":     {ptr.To(waiting("ImagePullBackOff", "connection refused")), hangTime, 4},
		"it runs":                    {ptr.To(hasStarted()), hangTime, 4},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(w *world) {
				w.config.Limits = queue.Limits{Total: 8, PerNamespace: 8, First: 4, Share: 1}
				w.config.Backoff.ImageGrace = time.Hour
				w.keepPods()
				w.startInOrder(someBundles("team-a", 1))
				if test.status != nil {
					w.says(w.onlyPod(), *test.status)
				}
				before, _ := w.term.places.Window("team-a")
				w.pass(test.age)
				b := w.named("team-a", "b-00")
				b.Spec.Suspend = true
				if err := w.store(b); err != nil {
					t.Fatal(err)
				}
				w.pass(time.Second)
				after, _ := w.term.places.Window("team-a")
				if got := after - (before - 4); got != test.want {
					t.Errorf("the window is %d, want %d", got, test.want)
				}
			})
		})
	}
}

func TestWhichBundlesHung(t *testing.T) {
	failed := v1alpha1.UnpackStatus{Generation: 1, Failures: 1, Reason: v1alpha1.ReasonDeadlineExceeded}
	for name, test := range map[string]struct {
		change func(*v1alpha1.UnpackStatus)
		want   bool
	}{
		"its time was over": {func(*v1alpha1.UnpackStatus) {}, true},
		"of another spec":   {func(u *v1alpha1.UnpackStatus) { u.Generation = 0 }, false},
		"it made way":       {func(u *v1alpha1.UnpackStatus) { u.Reason = v1alpha1.ReasonQueued }, false},
		"without a node":    {func(u *v1alpha1.UnpackStatus) { u.Reason = v1alpha1.ReasonUnschedulable }, false},
		"no failure":        {func(u *v1alpha1.UnpackStatus) { u.Failures = 0 }, false},
	} {
		b := testBundle()
		b.Generation, b.Status.Unpack = 1, failed.DeepCopy()
		test.change(b.Status.Unpack)
		if got := hung(b); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// Who asks for another attempt at what hung does not come behind all others for it.
func TestRetryOfWhatHung(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.config.Limits = queue.Limits{Total: 1, PerNamespace: 1, Share: 1}
		w.startInOrder(someBundles("team-a", 1))
		w.onNode()
		w.pass(pod.Timeout(testClass()) + time.Second)
		w.create(nth("team-b", 0))
		w.pass(time.Minute) // its next attempt is due
		for n := range 3 {
			b := nth("team-a", 1+n)
			b.CreationTimestamp = metav1.Now()
			w.create(b)
			w.pass(time.Second)
		}
		position := func() int {
			n, _ := w.term.places.Position(cache.NewObjectName("team-a", "b-00"))
			return n
		}
		w.pass(time.Minute)
		if n := position(); n != 4 {
			t.Fatalf("what hung is number %d", n)
		}
		b := w.named("team-a", "b-00")
		b.Annotations = map[string]string{v1alpha1.AnnotationRetry: "1"}
		if err := w.store(b); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Second)
		if n := position(); n != 1 {
			t.Errorf("who asks for a retry is number %d", n)
		}
	})
}

// The clock of the API server may be ahead: a pod has no more time for it.
func TestPodThatIsToEndByAnotherClock(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.config.Limits = queue.Limits{Total: 1, PerNamespace: 1, Share: 1}
		w.startInOrder(someBundles("team-a", 1))
		w.onNode()
		p := w.onlyPod()
		p.DeletionTimestamp = ptr.To(metav1.NewTime(time.Now().Add(24 * time.Hour)))
		w.says(p, p.Status)
		w.create(nth("team-b", 0))
		w.pass(endingTime + time.Second)
		if begun := w.begun("team-b"); len(begun) != 1 {
			t.Errorf("begun are %v", begun)
		}
	})
}

// A list after a gap can show another pod under the name of one that has gone.
func TestPodThatWasReplacedUnderItsName(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.startInOrder(someBundles("team-a", 1))
		w.onNode()
		p := w.onlyPod()
		other := p.DeepCopy()
		other.UID = "another"
		w.term.podHandler().OnUpdate(p, other)
		if n := w.term.ownPods.count(); n != 1 {
			t.Errorf("there are %d pods", n)
		}
	})
}

// Who asks for retry after retry does not get a pod for each.
func TestRetriesBesidePodsThatAreToEnd(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.config.Limits = queue.Limits{Total: 4, PerNamespace: 2, Share: 1}
		w.keepPods()
		w.startInOrder(someBundles("team-a", 1))
		for n := range 8 {
			w.onNode()
			b := w.named("team-a", "b-00")
			b.Annotations = map[string]string{v1alpha1.AnnotationRetry: fmt.Sprint(n)}
			if err := w.store(b); err != nil {
				t.Fatal(err)
			}
			w.pass(time.Second)
		}
		if pods := len(w.pods()); pods != 2 {
			t.Errorf("there are %d pods", pods)
		}
		for _, p := range w.pods() {
			w.gone(&p)
		}
		if b := w.named("team-a", "b-00"); !open(b.Status.Unpack) || b.Status.LastHandledRetry != "7" || len(w.pods()) != 1 {
			t.Errorf("%d pods, and %s", len(w.pods()), describe(b))
		}
	})
}

// A pod that has ended is of no weight, though it is there: other finalizers can keep it.
func TestPodThatHasEndedFreesItsPlace(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.config.Limits = queue.Limits{Total: 1, PerNamespace: 1, Share: 1}
		w.keepPods()
		w.startInOrder(someBundles("team-a", 2))
		p := w.onlyPod()
		w.onNode()
		w.committed(w.named("team-a", "b-00"))
		if begun := w.begun("team-a"); len(begun) != 0 {
			t.Fatalf("begun are %v beside a pod that runs", begun)
		}
		w.says(p, corev1.PodStatus{Phase: corev1.PodSucceeded})
		w.pass(time.Second)
		if begun := w.begun("team-a"); !slices.Equal(begun, []string{"b-01"}) {
			t.Errorf("begun are %v", begun)
		}
	})
}

// The time that a pod has to end counts from when it was told to, whoever leads when.
func TestPodThatIsToEndAndANewLeader(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.config.Limits = queue.Limits{Total: 1, PerNamespace: 1, Share: 1}
		w.keepPods()
		w.startInOrder(someBundles("team-a", 1))
		w.onNode()
		told := time.Now().Add(pod.Timeout(testClass()))
		w.pass(pod.Timeout(testClass()) + time.Second)
		w.create(nth("team-b", 0))
		w.pass(endingTime - time.Minute)
		w.stop()
		w.start()
		if begun := w.allBegun(); len(begun) != 0 || len(w.pods()) != 1 {
			t.Fatalf("begun are %v, with %d pods", begun, len(w.pods()))
		}
		w.pass(time.Until(told.Add(endingTime)) + 5*time.Second)
		if begun := w.allBegun(); len(begun) != 1 {
			t.Errorf("begun are %v long after the other was told to end", begun)
		}
		w.stop()
		w.start()
		if begun := w.allBegun(); len(begun) != 1 {
			t.Errorf("begun are %v beside a pod that is lost", begun)
		}
	})
}

// Nothing waits for a pod that is gone, nor for any once the term is over.
func TestNothingWaitsForPodsThatAreGone(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.config.Limits = queue.Limits{Total: 2, PerNamespace: 2, Share: 1}
		w.hang(2, time.Second)
		if n := len(w.term.endings.timers); n != 2 {
			t.Fatalf("%d pods are to end", n)
		}
		p := w.pods()[0]
		w.gone(&p)
		if n := len(w.term.endings.timers); n != 1 {
			t.Errorf("%d pods are to end after one is gone", n)
		}
		over := w.term
		w.stop()
		if n := len(over.endings.timers); n != 0 {
			t.Errorf("%d pods are to end after the term", n)
		}
	})
}

// Looks that hang have no more pods on the nodes than their namespace has looks at a time, though each gives way to the next.
func TestLooksBesidePodsThatAreToEnd(t *testing.T) {
	const many = 3 * looksPerNamespace
	inWorld(t, started(testClass()), func(w *world) {
		w.keepPods()
		for i := range many {
			w.create(taggedBundle(func(b *v1alpha1.Bundle) {
				b.Name, b.UID = fmt.Sprint("app-", i), types.UID(fmt.Sprint(i))
				b.Annotations = map[string]string{v1alpha1.AnnotationRefresh: "1"}
			}))
		}
		w.start()
		look := func(when string, begun int) {
			t.Helper()
			live := 0
			for _, p := range w.pods() {
				if p.DeletionTimestamp == nil {
					live++
				}
			}
			if pods := len(w.pods()); pods != looksPerNamespace || live != begun {
				t.Fatalf("%s there are %d pods, %d of which look", when, pods, live)
			}
		}
		look("at first", looksPerNamespace)
		w.stop()
		w.start()
		look("after a restart", looksPerNamespace)
		w.onNode()
		w.pass(pod.Timeout(testClass()) + time.Second)
		look("after their time", 0)
		w.oneGone()
		look("when one is gone", 1)
		w.oneGone()
		look("when the next is gone", looksPerNamespace)
		w.onNode()
		w.pass(pod.Timeout(testClass()) + endingTime + time.Minute)
		if pods := len(w.pods()); pods <= looksPerNamespace {
			t.Errorf("nothing begins beside pods that are lost: %d pods", pods)
		}
	})
}
