// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/queue"
)

// withImages gives each bundle an image of its own.
func withImages(objects []runtime.Object) []runtime.Object {
	for i, o := range objects {
		if b, ok := o.(*v1alpha1.Bundle); ok {
			b.Spec.Source.Image.Reference = fmt.Sprintf("registry.example/app-%d@%s", i, testDigest)
		}
	}
	return objects
}

// Pods are made as fast as the kubelets of the nodes that are known pull.
func TestPodsComeNoFasterThanKubeletsPull(t *testing.T) {
	inWorld(t, withImages(someBundles("team-a", 9)), func(w *world) {
		w.config.Limits = queue.Limits{Total: 20, PerNamespace: 20, Share: 1}
		w.config.Pulls = PullRate{Burst: 6, PerSecond: 5} // three at once, then four in a second
		w.start()
		w.pass(100 * time.Millisecond)
		for _, want := range []int{3, 4, 5, 6} {
			if pods := len(w.pods()); pods != want {
				t.Fatalf("%d pods, want %d", pods, want)
			}
			w.pass(250 * time.Millisecond)
		}
		for _, b := range w.all("team-a") {
			if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionUnpacked); c.Reason == v1alpha1.ReasonQueued {
				t.Errorf("%s says that it waits: %s", b.Name, c.Message)
			}
		}
		w.pass(time.Second)
		if pods := len(w.pods()); pods != 9 {
			t.Errorf("%d pods at the end", pods)
		}
	})
}

// A pod of several bundles counts for as many images as it has, and those of a policy that pulls nothing for none.
func TestImagesOfAPodCount(t *testing.T) {
	for name, tc := range map[string]struct {
		policy corev1.PullPolicy
		atOnce int
	}{"pulled": {corev1.PullAlways, 1}, "present": {corev1.PullNever, 2}} {
		t.Run(name, func(t *testing.T) {
			objects := withImages(someBundles("team-a", 5))
			for _, o := range objects {
				switch o := o.(type) {
				case *v1alpha1.Bundle:
					o.Spec.Source.Image.PullPolicy = tc.policy
				case *v1alpha1.ProvisionerClass:
					o.Unpack = &v1alpha1.UnpackPolicy{AllowedPullPolicies: []corev1.PullPolicy{tc.policy}}
				}
			}
			inWorld(t, objects, func(w *world) {
				w.config.Pulls = PullRate{Burst: 8, PerSecond: 2}
				w.start()
				w.pass(400 * time.Millisecond)
				// The first goes alone, and leaves three.
				if pods := len(w.pods()); pods != tc.atOnce {
					t.Fatalf("%d pods at once", pods)
				}
				w.pass(time.Second)
				if p, single := w.shared(); p == nil || single != 1 || len(p.OwnerReferences) != 4 {
					t.Errorf("%d pods of one bundle, and the other is %v", single, p)
				}
			})
		})
	}
}

func TestPulls(t *testing.T) {
	nodes, unstarted := 0, 0
	p := newPulls(PullRate{Burst: 10, PerSecond: 5}, func(time.Time) (int, int) { return nodes, unstarted })
	now := time.Unix(1000, 0)
	for i, step := range []struct {
		images int
		want   time.Duration
	}{
		{2, 0}, {3, 0}, {1, 250 * time.Millisecond}, {2, 500 * time.Millisecond},
		{1, 250 * time.Millisecond},    // who waited did not count
		{100, 1250 * time.Millisecond}, // as many as can be in a row
	} {
		if got := p.wait(step.images, now); got != step.want {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
	now = now.Add(10 * time.Second)
	if got := p.wait(5, now); got != 0 {
		t.Errorf("after a pause it is %v", got)
	}
	// Where more nodes are known more are pulled.
	nodes = 4
	if got := p.wait(8, now); got != 500*time.Millisecond {
		t.Errorf("with four nodes it is %v", got)
	}
	// A node that has too many pulls no more in a row, once for each time that it tries a pod.
	nodes = 1
	now = now.Add(10 * time.Second)
	for range 3 {
		p.refused("a", now)
	}
	if got := p.wait(1, now); got != 250*time.Millisecond {
		t.Errorf("after a refusal it is %v", got)
	}
	for pod := range 100 {
		p.refused(types.UID(fmt.Sprint(pod)), now)
	}
	if got := p.wait(1, now); got != 250*time.Millisecond {
		t.Errorf("after many refusals it is %v", got)
	}
	now = now.Add(time.Second)
	p.refused("a", now)
	if got := p.wait(4, now); got != 0 {
		t.Errorf("a second after the same refusal it is %v", got)
	}
	now = now.Add(9 * time.Second)
	p.refused("a", now)
	if got := p.wait(1, now); got != 250*time.Millisecond {
		t.Errorf("after the next one it is %v", got)
	}
	(*pulls)(nil).refused("a", now)

	// A time that was seen before brings nothing again.
	if got := p.wait(1, now.Add(-5*time.Second)); got != 250*time.Millisecond {
		t.Errorf("with an old time it is %v", got)
	}
	if got := p.wait(1, now); got != 250*time.Millisecond {
		t.Errorf("after an old time it is %v", got)
	}

	// Pods that have not started yet have their images before them.
	now = now.Add(10 * time.Second)
	unstarted = 6
	if got := p.wait(5, now); got != lookAgain {
		t.Errorf("beside six images it is %v", got)
	}
	if got := p.wait(4, now); got != 0 {
		t.Errorf("four images beside six wait %v", got)
	}
	// They are not waited for for ever.
	for ; ; now = now.Add(lookAgain) {
		got := p.wait(5, now)
		if got == 0 {
			break
		}
		if got != lookAgain {
			t.Errorf("beside six images it is %v", got)
		}
	}
	if waited := now.Sub(time.Unix(1040, 0)); waited != startTime {
		t.Errorf("pods that do not start were waited for for %v", waited)
	}
}
