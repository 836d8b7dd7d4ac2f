// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics/testutil"
	"testing/synctest"

	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/pod"
	"rukpak.io/apiserver/pkg/unpack/queue"
)

// nth is the n-th bundle of a namespace, made in that second.
func nth(namespace string, n int) *v1alpha1.Bundle {
	return changedBundle(func(b *v1alpha1.Bundle) {
		b.Namespace, b.Name = namespace, fmt.Sprintf("b-%02d", n)
		b.UID = types.UID(namespace + "/" + b.Name)
		b.CreationTimestamp = metav1.NewTime(time.Unix(int64(n), 0))
		for i := range b.Status.Conditions {
			b.Status.Conditions[i].LastTransitionTime = b.CreationTimestamp
		}
	})
}

func someBundles(namespace string, count int) []runtime.Object {
	objects := started(testClass())
	for n := range count {
		objects = append(objects, nth(namespace, n))
	}
	return objects
}

// named returns a bundle as it is stored.
func (w *world) named(namespace, name string) *v1alpha1.Bundle {
	w.t.Helper()
	obj, err := w.bundles.Tracker().Get(group, namespace, name)
	if err != nil {
		w.t.Fatal(err)
	}
	return obj.(*v1alpha1.Bundle).DeepCopy()
}

// all returns the bundles of a namespace, in order.
func (w *world) all(namespace string) []*v1alpha1.Bundle {
	w.t.Helper()
	list, err := w.bundles.Tracker().List(group, v1alpha1.SchemeGroupVersion.WithKind("Bundle"), namespace)
	if err != nil {
		w.t.Fatal(err)
	}
	var all []*v1alpha1.Bundle
	for i := range list.(*v1alpha1.BundleList).Items {
		all = append(all, list.(*v1alpha1.BundleList).Items[i].DeepCopy())
	}
	return all
}

// committed writes what the server writes when it has taken the content of a bundle.
func (w *world) committed(b *v1alpha1.Bundle) {
	w.t.Helper()
	b.Status.Content = &v1alpha1.ContentStatus{Digest: testDigest, Size: 1, Generation: b.Generation}
	conditions.SetProgress(&b.Status.Conditions, b.Generation, metav1.ConditionTrue, v1alpha1.ReasonUnpacked, "")
	conditions.SetContentAvailable(&b.Status.Conditions, b.Generation, true, v1alpha1.ReasonAvailable, "")
	b.Status.Unpack.EndTime = &metav1.Time{Time: time.Now()}
	if err := w.store(b); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

func (w *world) says(p *corev1.Pod, status corev1.PodStatus) {
	w.t.Helper()
	p = p.DeepCopy()
	p.Status = status
	p.Spec.NodeName = "node" // whose word it is
	if err := w.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), p, p.Namespace); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

// shared returns the only pod of several bundles, and how many pods of one there are.
func (w *world) shared() (*corev1.Pod, int) {
	w.t.Helper()
	var found *corev1.Pod
	single := 0
	for _, p := range w.pods() {
		switch {
		case len(p.OwnerReferences) < 2:
			single++
		case found != nil:
			w.t.Fatalf("pods %s and %s are both shared", found.Name, p.Name)
		default:
			found = &p
		}
	}
	return found, single
}

// expectMember checks that a bundle's attempt is the pod's, which may write its content then.
func expectMember(t *testing.T, b *v1alpha1.Bundle, p *corev1.Pod) {
	t.Helper()
	u := b.Status.Unpack
	if !open(u) || u.PodName != p.Name || u.PodUID != p.UID {
		t.Errorf("the attempt of %s is not that of pod %s: %s", b.Name, p.Name, describe(b))
		return
	}
	made, err := pod.MadeFor(testKey, p)
	if err != nil || !slices.Contains(made, pod.Owned{Attempt: pod.AttemptOf(b), Name: b.Name}) {
		t.Errorf("pod %s has no proof for %s: %v, %v", p.Name, b.Name, made, err)
	}
}

// five begins five bundles of a namespace: one has a pod of its own, since it was first, and the others share one.
func five(w *world) *corev1.Pod {
	w.t.Helper()
	w.start()
	w.pass(time.Second)
	p, single := w.shared()
	if p == nil || single != 1 || len(p.OwnerReferences) != 4 {
		w.t.Fatalf("%d pods of one bundle, and of several %+v", single, p)
	}
	return p
}

func membersOf(w *world, p *corev1.Pod) []*v1alpha1.Bundle {
	var members []*v1alpha1.Bundle
	for _, o := range p.OwnerReferences {
		members = append(members, w.named(p.Namespace, o.Name))
	}
	return members
}

func TestBundlesShareAPod(t *testing.T) {
	inWorld(t, someBundles("team-a", 5), func(w *world) {
		p := five(w)
		members := membersOf(w, p)
		for _, b := range members {
			expectMember(t, b, p)
		}
		// The pod stays for as long as it has something to do.
		for i, b := range members {
			if there, _ := w.shared(); there == nil {
				t.Fatalf("the pod is gone with %d bundles to go", len(members)-i)
			}
			w.committed(w.named(b.Namespace, b.Name))
		}
		if there, _ := w.shared(); there != nil {
			t.Error("the pod is there when all is done")
		}
		// One write for the attempt and one for the UID of its pod; the commit is the server's.
		if writes := w.writes(); writes != 2*5 {
			t.Errorf("%d writes of status for 5 bundles", writes)
		}
	})
}

// What spoils a shared pod costs nobody but time: all without content go on alone, with no failure counted.
func TestSpoiltPodIsLeft(t *testing.T) {
	for name, spoil := range map[string]func(w *world, p *corev1.Pod){
		"an image that cannot be pulled": func(w *world, p *corev1.Pod) { w.says(p, waiting("ErrImagePull", "x: not found")) },
		"a volume that cannot be mounted": func(w *world, p *corev1.Pod) {
			w.says(p, waiting("CreateContainerError", "failed to mount image volume"))
		},
		"content that is refused": func(w *world, p *corev1.Pod) { w.says(p, exited(1, `{"reason":"ContentRefused","message":"x"}`)) },
		"an end without content":  func(w *world, p *corev1.Pod) { w.says(p, exited(0, "")) },
		"an eviction":             func(w *world, p *corev1.Pod) { w.says(p, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}) },
		"a deletion": func(w *world, p *corev1.Pod) {
			if err := w.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), p.Namespace, p.Name); err != nil {
				w.t.Fatal(err)
			}
			synctest.Wait()
		},
		"too much time": func(w *world, _ *corev1.Pod) { w.pass(10*time.Minute + time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, someBundles("team-a", 5), func(w *world) {
				p := five(w)
				members := membersOf(w, p)
				w.committed(w.named("team-a", members[0].Name))
				spoil(w, p)
				w.pass(time.Second)
				if there, _ := w.shared(); there != nil {
					t.Errorf("pod %s is still there", there.Name)
				}
				for _, b := range members[1:] {
					b = w.named("team-a", b.Name)
					u := b.Status.Unpack
					if !open(u) || u.PodUID == "" || u.PodUID == p.UID || pod.IsShared(b.Name, u) || u.Failures != 0 || u.Attempt != 2 {
						t.Errorf("%s did not go on alone: %s", b.Name, describe(b))
					}
				}
				if b := w.named("team-a", members[0].Name); open(b.Status.Unpack) || b.Status.Unpack.Attempt != 1 {
					t.Errorf("%s, which has its content, was begun anew: %s", b.Name, describe(b))
				}
			})
		})
	}
}

// When the node names the image that it cannot pull, only its bundle goes on alone.
func TestInnocentBundlesShareAgain(t *testing.T) {
	objects := someBundles("team-a", 5)
	for i, o := range objects[1:] {
		o.(*v1alpha1.Bundle).Spec.Source.Image.Reference = fmt.Sprintf("registry.example/app-%d@%s", i, testDigest)
	}
	inWorld(t, objects, func(w *world) {
		p := five(w)
		members := membersOf(w, p)
		w.says(p, waiting("ErrImagePull", fmt.Sprintf("failed to pull image %q: not found", members[2].Spec.Source.Image.Reference)))
		w.pass(time.Second)
		again, single := w.shared()
		if again == nil || again.UID == p.UID || len(again.OwnerReferences) != 3 || single != 2 {
			t.Fatalf("%d pods of one bundle, and of several %v", single, again)
		}
		for i, b := range members {
			if b = w.named("team-a", b.Name); i != 2 {
				expectMember(t, b, again)
			} else if pod.IsShared(b.Name, b.Status.Unpack) || !open(b.Status.Unpack) {
				t.Errorf("%s does not go on alone: %s", b.Name, describe(b))
			}
		}
		// That does not go on for ever.
		w.says(again, waiting("ErrImagePull", fmt.Sprintf("failed to pull image %q: not found", members[0].Spec.Source.Image.Reference)))
		w.pass(time.Second)
		third, _ := w.shared()
		if third == nil {
			t.Fatal("two did not share once more")
		}
		w.says(third, waiting("ErrImagePull", fmt.Sprintf("failed to pull image %q: not found", members[1].Spec.Source.Image.Reference)))
		w.pass(time.Second)
		if there, single := w.shared(); there != nil || single != 5 {
			t.Errorf("%d pods of one bundle, and of several %v", single, there)
		}
	})
}

// A bundle that leaves a shared pod does not disturb the others.
func TestOneLeavesASharedPod(t *testing.T) {
	for name, leave := range map[string]func(w *world, b *v1alpha1.Bundle){
		"deleted": func(w *world, b *v1alpha1.Bundle) {
			if err := w.bundles.Tracker().Delete(group, b.Namespace, b.Name); err != nil {
				w.t.Fatal(err)
			}
		},
		"suspended": func(w *world, b *v1alpha1.Bundle) { b.Spec.Suspend = true; w.change(b) },
		"edited":    func(w *world, b *v1alpha1.Bundle) { b.Spec.Source.Image.Path = "/x"; w.change(b) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, someBundles("team-a", 5), func(w *world) {
				p := five(w)
				members := membersOf(w, p)
				leave(w, members[1])
				w.pass(time.Second)
				if name == "deleted" {
					p = w.disown(p, 1)
				}
				for i, b := range members {
					if i != 1 {
						expectMember(t, w.named("team-a", b.Name), p)
					}
				}
				if name != "deleted" {
					if u := w.named("team-a", members[1].Name).Status.Unpack; open(u) && u.PodUID == p.UID {
						t.Errorf("its attempt is still that of the pod: %+v", u)
					}
				}
				if there, _ := w.shared(); there == nil {
					t.Error("the pod is gone")
				}
				for i, b := range members {
					if i != 1 {
						w.committed(w.named("team-a", b.Name))
					}
				}
				if there, _ := w.shared(); there != nil {
					t.Error("the pod is there when all others are done")
				}
			})
		})
	}
}

// disown takes an owner off a pod, as the garbage collector does when it is gone and others are there.
func (w *world) disown(p *corev1.Pod, owner int) *corev1.Pod {
	w.t.Helper()
	p = p.DeepCopy()
	p.OwnerReferences = slices.Delete(p.OwnerReferences, owner, owner+1)
	w.says(p, p.Status)
	return p
}

// change writes a bundle whose spec was changed.
func (w *world) change(b *v1alpha1.Bundle) {
	w.t.Helper()
	b.Generation++
	conditions.Begin(&b.Status.Conditions, b.Generation)
	if err := w.store(b); err != nil {
		w.t.Fatal(err)
	}
}

// A cluster that takes no pod of several bundles takes those of one.
func TestSharedPodIsRefused(t *testing.T) {
	inWorld(t, someBundles("team-a", 5), func(w *world) {
		w.setRefusal(apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", errors.New("policy")))
		w.start()
		w.pass(300 * time.Millisecond)
		w.setRefusal(nil)
		w.pass(time.Minute)
		p, single := w.shared()
		if p != nil || single != 5 {
			t.Errorf("%d pods of one bundle, and of several %v", single, p)
		}
	})
}

// A cluster that drops the images of a shared pod is told of by pods of one bundle, and the shared one is not left.
func TestSharedPodWithoutImages(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		shared, first := 0, true
		w.beforeCreate = func(p *corev1.Pod) {
			if first {
				first = false // it keeps its place, so that the others gather
				return
			}
			if strings.HasPrefix(p.Name, "bundles-") {
				shared++
			}
			for i := range p.Spec.Volumes {
				p.Spec.Volumes[i].Image = nil
			}
		}
		w.startInOrder(someBundles("team-a", 5))
		w.pass(time.Second)
		if shared == 0 {
			t.Error("no pod was shared")
		}
		w.committed(w.named("team-a", "b-00"))
		w.pass(time.Second)
		for _, b := range w.all("team-a") {
			if u := b.Status.Unpack; b.Status.Content == nil && (u.Failures == 0 || u.Reason != v1alpha1.ReasonImageVolumeUnsupported) {
				t.Errorf("%s: %s", b.Name, describe(b))
			}
		}
		if pods := w.pods(); len(pods) > 0 {
			t.Errorf("%d pods are left", len(pods))
		}
	})
}

// A server that ends while it makes a shared pod leaves nothing that the next one does not see to.
func TestSharedPodAfterARestart(t *testing.T) {
	for name, test := range map[string]struct {
		forget func(w *world, p *corev1.Pod)
		shares bool
	}{
		"all is recorded": {func(*world, *corev1.Pod) {}, true},
		"no UID is recorded": {func(w *world, p *corev1.Pod) {
			for _, b := range membersOf(w, p) {
				b.Status.Unpack.PodUID = ""
				if err := w.store(b); err != nil {
					w.t.Fatal(err)
				}
			}
		}, true},
		"the pod was not made": {func(w *world, p *corev1.Pod) {
			for _, b := range membersOf(w, p) {
				b.Status.Unpack.PodUID = ""
				if err := w.store(b); err != nil {
					w.t.Fatal(err)
				}
			}
			if err := w.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), p.Namespace, p.Name); err != nil {
				w.t.Fatal(err)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, someBundles("team-a", 5), func(w *world) {
				p := five(w)
				w.stop()
				test.forget(w, p)
				w.start()
				w.pass(time.Second)
				there, single := w.shared()
				if !test.shares {
					if there != nil || single != 5 {
						t.Errorf("%d pods of one bundle, and of several %v", single, there)
					}
					return
				}
				if there == nil || there.UID != p.UID || single != 1 {
					t.Fatalf("%d pods of one bundle, and of several %v", single, there)
				}
				for _, b := range membersOf(w, p) {
					expectMember(t, b, p)
				}
			})
		})
	}
}

// No bundle is begun beyond the limits, those that wait say so, seldom, and all have their turn.
func TestWaitingBundlesSaySo(t *testing.T) {
	objects := append(someBundles("team-a", 6), nth("team-b", 9))
	inWorld(t, objects, func(w *world) {
		w.config.Limits = queue.Limits{Total: 2, PerNamespace: 2, Share: 1}
		w.start()
		w.pass(time.Second)
		if pods := len(w.pods()); pods > 2 {
			t.Fatalf("%d pods beside each other", pods)
		}
		before := w.writes()
		w.pass(2 * time.Second)
		queued := 0
		for _, b := range append(w.all("team-a"), w.all("team-b")...) {
			c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionUnpacked)
			if c.Reason != v1alpha1.ReasonQueued {
				continue
			}
			queued++
			if b.Status.Phase != v1alpha1.BundlePending {
				t.Errorf("%s waits in phase %s", b.Name, b.Status.Phase)
			}
		}
		if queued != 5 || w.writes()-before != 5 {
			t.Errorf("%d bundles say that they wait, in %d writes", queued, w.writes()-before)
		}
		// The minute that nothing happens in costs each no more than two words.
		w.pass(time.Minute)
		if writes := w.writes() - before; writes > 3*5 {
			t.Errorf("%d writes of bundles that wait", writes)
		}
		for range 7 {
			for _, b := range append(w.all("team-a"), w.all("team-b")...) {
				if open(b.Status.Unpack) && b.Status.Unpack.PodUID != "" {
					w.committed(b)
					w.pass(10 * time.Millisecond)
				}
			}
		}
		for _, b := range append(w.all("team-a"), w.all("team-b")...) {
			if b.Status.Content == nil {
				t.Errorf("%s had no turn: %s", b.Name, describe(b))
			}
		}
	})
}

// A bundle that waits and is suspended or deleted gives its turn to the next.
func TestSuspendedBundleLeavesTheQueue(t *testing.T) {
	inWorld(t, someBundles("team-a", 3), func(w *world) {
		w.config.Limits = queue.Limits{Total: 1, PerNamespace: 1, Share: 1}
		w.start()
		w.pass(3 * time.Second)
		var begun, waits []*v1alpha1.Bundle
		for _, b := range w.all("team-a") {
			if open(b.Status.Unpack) {
				begun = append(begun, b)
			} else {
				waits = append(waits, b)
			}
		}
		if len(begun) != 1 {
			t.Fatalf("%d bundles have begun", len(begun))
		}
		waits[0].Spec.Suspend = true
		w.change(waits[0])
		w.pass(time.Second)
		w.committed(w.named("team-a", begun[0].Name))
		w.pass(time.Second)
		if b := w.named("team-a", waits[0].Name); b.Status.Unpack != nil {
			t.Errorf("the suspended one was begun: %s", describe(b))
		}
		if b := w.named("team-a", waits[1].Name); !open(b.Status.Unpack) {
			t.Errorf("the next one was not begun: %s", describe(b))
		}
	})
}

// Who waits is counted until he is gone: an alert asks for it.
func TestWaitingIsCounted(t *testing.T) {
	inWorld(t, someBundles("team-a", 3), func(w *world) {
		w.config.Limits = queue.Limits{Total: 1, PerNamespace: 1, Share: 1}
		w.start()
		expect := func(what string, want float64) {
			t.Helper()
			if got, err := testutil.GetGaugeMetricValue(queued); err != nil || got != want {
				t.Errorf("%s %v wait, want %v (%v)", what, got, want, err)
			}
		}
		w.pass(3 * time.Second)
		expect("at first", 2)
		for _, b := range w.all("team-a") {
			if open(b.Status.Unpack) {
				continue
			}
			if err := w.bundles.Tracker().Delete(v1alpha1.SchemeGroupVersion.WithResource("bundles"), b.Namespace, b.Name); err != nil {
				t.Fatal(err)
			}
			w.pass(time.Second)
		}
		expect("when they are deleted", 0)
	})
}

// TestImageOfAnotherIsNotBlamedOnAll has the node speak of one image of a shared pod.
func TestImageOfAnotherIsNotBlamedOnAll(t *testing.T) {
	inWorld(t, someBundles("team-a", 5), func(w *world) {
		p := five(w)
		bad := p.Spec.Volumes[slices.IndexFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Image != nil })].Image.Reference
		w.says(p, waiting("ContainerCreating", ""))
		if err := w.kube.Tracker().Add(&corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: p.Namespace}, Type: corev1.EventTypeWarning, Reason: "Failed",
			InvolvedObject: corev1.ObjectReference{UID: p.UID}, Message: fmt.Sprintf("Failed to pull image %q: %s: not found", bad, bad),
		}); err != nil {
			t.Fatal(err)
		}
		w.pass(40 * time.Second)
		for _, b := range w.all(p.Namespace) {
			if u := b.Status.Unpack; strings.Contains(u.Message, bad) || u.Failures > 0 {
				t.Errorf("bundle %s of %s: %s: %s", b.Name, b.Spec.Source.Image.Reference, u.Reason, u.Message)
			}
			if b.Status.Unpack.PodUID == p.UID {
				t.Errorf("bundle %s is in that pod still", b.Name)
			}
		}
	})
}

// A shared pod that failed is gone when its bundles wait for places of their own.
func TestSpoiltPodGoesWhenPlacesAreScarce(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.config.Limits = queue.Limits{Total: 1, PerNamespace: 1, Share: 4}
		w.startInOrder(someBundles("team-a", 5))
		w.committed(w.named("team-a", "b-00"))
		w.pass(time.Second)
		p, single := w.shared()
		if p == nil || single > 0 || len(p.OwnerReferences) != 4 {
			t.Fatalf("%d pods of one bundle, and of several %v", single, p)
		}
		w.says(p, waiting("CreateContainerError", "failed to mount image volume"))
		for left := 4; left > 0; left-- {
			w.pass(3 * time.Second)
			if there, single := w.shared(); there != nil || single != 1 {
				t.Fatalf("%d bundles to go: %d pods of one bundle, and of several %v", left, single, there)
			}
			for _, b := range w.all("team-a") {
				u := b.Status.Unpack
				c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionUnpacked)
				switch {
				case b.Status.Content != nil || open(u):
				case u.Failures != 0 || u.Reason != v1alpha1.ReasonPodFailed || c.Reason != v1alpha1.ReasonQueued || !strings.Contains(c.Message, "the last attempt made way: the pod that it shared"):
					t.Errorf("%s", describe(b))
				}
			}
			for _, b := range w.all("team-a") {
				if open(b.Status.Unpack) {
					w.committed(b)
				}
			}
		}
		w.pass(time.Second)
		if w.term.places.Used() != 0 || len(w.pods()) != 0 {
			t.Errorf("%d places are used, and there are %d pods", w.term.places.Used(), len(w.pods()))
		}
	})
}

// Who shares again, since the image of another was at fault, does so after a wait too.
func TestInnocentBundlesShareAgainAfterAWait(t *testing.T) {
	objects := someBundles("team-a", 5)
	for i, o := range objects[1:] {
		o.(*v1alpha1.Bundle).Spec.Source.Image.Reference = fmt.Sprintf("registry.example/app-%d@%s", i, testDigest)
	}
	inWorld(t, nil, func(w *world) {
		w.config.Limits = queue.Limits{Total: 1, PerNamespace: 1, Share: 4}
		w.startInOrder(objects)
		w.committed(w.named("team-a", "b-00"))
		w.pass(time.Second)
		p, _ := w.shared()
		w.says(p, waiting("ErrImagePull", fmt.Sprintf("failed to pull image %q: not found", w.named("team-a", "b-01").Spec.Source.Image.Reference)))
		w.pass(3 * time.Second)
		if pods := len(w.pods()); pods != 1 {
			t.Errorf("there are %d pods", pods)
		}
		if begun := w.begun("team-a"); !slices.Equal(begun, []string{"b-01"}) {
			t.Fatalf("begun are %v", begun)
		}
		w.committed(w.named("team-a", "b-01"))
		w.pass(time.Second)
		again, single := w.shared()
		if again == nil || len(again.OwnerReferences) != 3 || single != 0 {
			t.Errorf("%d pods of one bundle, and of several %v", single, again)
		}
	})
}
