// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/contract"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

// TestTwoLeaders has two reconcilers at the same bundles, as when one was stopped for so long that another took its place.
func TestTwoLeaders(t *testing.T) {
	for name, upset := range map[string]func(w *world){
		"all goes well": func(*world) {},
		"a pod fails":   func(w *world) { w.says(&w.pods()[0], exited(1, "")) },
		"a pod is deleted": func(w *world) {
			if err := w.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "team-a", w.pods()[0].Name); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, someBundles("team-a", 5), func(w *world) {
				w.start()
				cancel, done := w.cancel, w.done
				stopFirst := sync.OnceFunc(func() {
					cancel()
					if err := <-done; err != nil {
						t.Error(err)
					}
				})
				defer stopFirst()
				w.start()
				w.pass(time.Minute)
				upset(w)
				w.pass(time.Minute)
				named := map[string]bool{}
				for _, b := range w.all("team-a") {
					if !open(b.Status.Unpack) {
						t.Fatalf("bundle %s has no attempt: %s", b.Name, describe(b))
					}
					named[b.Status.Unpack.PodName] = true
				}
				for _, p := range w.pods() {
					if !named[p.Name] {
						t.Errorf("pod %s is nobody's", p.Name)
					}
				}
				quiet := w.writes()
				w.pass(time.Minute)
				if again := w.writes() - quiet; again != 0 {
					t.Errorf("they write %d times a minute with nothing to do", again)
				}
				if quiet > 60 {
					t.Errorf("%d writes for 5 bundles", quiet)
				}
				stopFirst()
				for _, b := range w.all("team-a") {
					w.committed(b)
				}
				w.pass(time.Second)
				if left := len(w.pods()); left != 0 {
					t.Errorf("%d pods are left", left)
				}
			})
		})
	}
}

// TestClockWasAhead begins with what a process has written whose clock was ahead of this one's.
func TestClockWasAhead(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"three minutes": 3 * time.Minute, "a day": 24 * time.Hour} {
		failed := changedBundle(func(b *v1alpha1.Bundle) {
			b.Status.Unpack = &v1alpha1.UnpackStatus{
				Generation: 1, Attempt: 1, Failures: 1, Nonce: pod.NewNonce(), Mode: v1alpha1.UnpackModeImageVolume, ClassUID: "class-uid",
				Reason: v1alpha1.ReasonImageNotFound, StartTime: bubbleTime(ahead), EndTime: bubbleTime(ahead), NextAttemptTime: bubbleTime(ahead + 5*time.Second),
			}
		})
		t.Run("an attempt has failed, "+name, func(t *testing.T) {
			inWorld(t, started(testClass(), failed), func(w *world) {
				w.start()
				w.pass(6 * time.Second)
				if u := w.bundle().Status.Unpack; u.Attempt != 2 {
					t.Errorf("attempt %+v", u)
				}
				w.onlyPod()
			})
		})
		running := changedBundle(func(b *v1alpha1.Bundle) {
			nonce := pod.NewNonce()
			b.Status.Unpack = &v1alpha1.UnpackStatus{
				Generation: 1, Attempt: 1, Nonce: nonce, PodName: pod.Name(b.Name, nonce), Mode: v1alpha1.UnpackModeImageVolume,
				ClassUID: "class-uid", StartTime: bubbleTime(ahead),
			}
		})
		t.Run("an attempt runs, "+name, func(t *testing.T) {
			inWorld(t, started(testClass(), running), func(w *world) {
				w.start()
				w.onlyPod()
				w.pass(pod.Timeout(testClass()) + time.Second)
				w.expect(metav1.ConditionUnknown, v1alpha1.ReasonDeadlineExceeded)
			})
		})
		for what, change := range map[string]func(b *v1alpha1.Bundle){
			"content was written": func(b *v1alpha1.Bundle) { b.Status.Content.UpdateTime = *bubbleTime(ahead) },
			"somebody has looked": func(b *v1alpha1.Bundle) {
				b.Status.Refresh = &v1alpha1.RefreshStatus{LastTime: bubbleTime(ahead)}
			},
			"a look has failed": func(b *v1alpha1.Bundle) {
				b.Status.Refresh = &v1alpha1.RefreshStatus{LastTime: bubbleTime(ahead), Failures: 3, NextTime: bubbleTime(ahead + 20*time.Second)}
			},
		} {
			t.Run(what+", "+name, func(t *testing.T) {
				inWorld(t, started(testClass(), taggedBundle(every(10*time.Minute), change)), func(w *world) {
					w.start()
					for end := time.Now().Add(11*time.Minute + 5*time.Second + min(ahead, 3*time.Minute)); len(w.pods()) == 0 && time.Now().Before(end); {
						w.pass(time.Second)
					}
					w.lookingPod()
					w.podSays(found(testImage))
					w.served()
					w.pass(8 * time.Minute)
					if len(w.pods()) != 0 {
						t.Error("it is looked for again at once")
					}
				})
			})
		}
	}
}

// bubbleTime is so long after the beginning of the time in a bubble.
func bubbleTime(after time.Duration) *metav1.Time {
	return &metav1.Time{Time: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(after)}
}

// TestClockWasBehind: an attempt that seems to have run for long ends, and the next one has all its time.
func TestClockWasBehind(t *testing.T) {
	running := changedBundle(func(b *v1alpha1.Bundle) {
		nonce := pod.NewNonce()
		b.Status.Unpack = &v1alpha1.UnpackStatus{
			Generation: 1, Attempt: 1, Nonce: nonce, PodName: pod.Name(b.Name, nonce), Mode: v1alpha1.UnpackModeImageVolume,
			ClassUID: "class-uid", StartTime: bubbleTime(-time.Hour),
		}
	})
	inWorld(t, started(testClass(), running), func(w *world) {
		w.start()
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonDeadlineExceeded, "attempt 1 failed")
		w.pass(6 * time.Second)
		p := w.onlyPod()
		w.pass(pod.Timeout(testClass()) - 10*time.Second)
		if now := w.onlyPod(); now.UID != p.UID {
			t.Errorf("pod %s became %s", p.UID, now.UID)
		}
	})
}

// outage lets requests fail, and watches end with all that happens meanwhile unseen, as when the API server is away or has
// compacted what they would go on from.
type outage struct {
	mu       sync.Mutex
	on       bool
	watchers []watch.Interface
}

func (o *outage) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.on = true
	for _, w := range o.watchers {
		w.Stop()
	}
	o.watchers = nil
}

func (o *outage) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.on = false
}

func (o *outage) isOn() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.on
}

// startErrors has the time of the last error be one of this bubble. Whoever reports an error through client-go waits until a
// millisecond after the last one. That may have been in another bubble, or outside, where it is later by minutes or years: so
// this waits for that, and no reflector does.
func startErrors() { utilruntime.HandleError(errors.New("the test begins")) }

// strike makes a fake fail during the outage: watches alone, or everything.
func (o *outage) strike(fake *clienttesting.Fake, tracker clienttesting.ObjectTracker, everything bool) {
	fake.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		if o.isOn() {
			return true, nil, apierrors.NewResourceExpired("too old resource version")
		}
		w, err := tracker.Watch(action.GetResource(), action.GetNamespace())
		if err == nil {
			o.mu.Lock()
			o.watchers = append(o.watchers, w)
			o.mu.Unlock()
		}
		return true, w, err
	})
	if everything {
		fake.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return o.isOn(), nil, apierrors.NewServiceUnavailable("it is away")
		})
	}
}

// TestAPIsAreAway has an API away for a minute, or its watches expire, while what it holds changes.
func TestAPIsAreAway(t *testing.T) {
	for _, test := range []struct {
		name                      string
		bundles, kube, everything bool
	}{
		{name: "watches of bundles expire", bundles: true},
		{name: "watches of pods expire", kube: true},
		{name: "all watches expire", bundles: true, kube: true},
		{name: "both", bundles: true, kube: true, everything: true},
	} {
		for what, meanwhile := range map[string]struct {
			change func(w *world)
			then   func(w *world)
		}{
			"content comes": {(*world).commit, func(w *world) {
				w.expect(metav1.ConditionTrue, v1alpha1.ReasonUnpacked)
				if len(w.pods()) != 0 {
					w.t.Error("the pod is left")
				}
			}},
			"the bundle goes": {func(w *world) {
				if err := w.bundles.Tracker().Delete(group, "team-a", "app"); err != nil {
					w.t.Fatal(err)
				}
			}, func(w *world) {
				if len(w.pods()) != 0 {
					w.t.Error("the pod is left")
				}
			}},
			"the pod goes": {func(w *world) {
				if err := w.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "team-a", w.onlyPod().Name); err != nil {
					w.t.Fatal(err)
				}
			}, func(w *world) {
				if u := w.bundle().Status.Unpack; u.Attempt != 2 || u.PodUID != w.onlyPod().UID {
					w.t.Errorf("attempt %+v", u)
				}
			}},
			"the spec changes": {func(w *world) {
				w.edit(func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Path = "/other" })
			}, func(w *world) {
				if u := w.bundle().Status.Unpack; u.Generation != 2 || u.Failures != 0 || u.PodUID != w.onlyPod().UID {
					w.t.Errorf("attempt %+v", u)
				}
			}},
			"the pod fails": {func(w *world) { w.podSays(exited(1, `{"reason":"UploadFailed","message":"no route"}`)) }, func(w *world) {
				if u := w.bundle().Status.Unpack; u.Attempt != 2 || u.Failures != 1 || u.PodUID != w.onlyPod().UID {
					w.t.Errorf("attempt %+v", u)
				}
			}},
		} {
			t.Run(test.name+", "+what, func(t *testing.T) {
				inWorld(t, started(testClass(), testBundle()), func(w *world) {
					startErrors()
					var away outage
					if test.bundles {
						away.strike(&w.bundles.Fake, w.bundles.Tracker(), test.everything)
					}
					if test.kube {
						away.strike(&w.kube.Fake, w.kube.Tracker(), test.everything)
					}
					w.start()
					w.onlyPod()
					away.begin()
					w.pass(time.Second)
					meanwhile.change(w)
					w.pass(time.Minute)
					away.end()
					w.pass(2*longestRetry + time.Minute)
					// The fake does not replay what came between a list and the watch after it.
					away.begin()
					away.end()
					w.pass(time.Minute)
					meanwhile.then(w)
				})
			})
		}
	}
}

// TestAttemptIsCountedOnceWhenTheAPIIsAway: what cannot be written is no failure of the attempt.
func TestAttemptIsCountedOnceWhenTheAPIIsAway(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		startErrors()
		var away outage
		away.strike(&w.bundles.Fake, w.bundles.Tracker(), true)
		w.start()
		away.begin()
		w.podSays(exited(1, `{"reason":"`+contract.ReasonUploadFailed+`","message":"no route"}`))
		w.pass(5 * time.Minute)
		away.end()
		w.pass(longestRetry + time.Second)
		if u := w.bundle().Status.Unpack; u.Failures != 1 {
			t.Errorf("attempt %+v", u)
		}
	})
}

// terminating is how the API server refuses a pod in a namespace that is being deleted.
func terminating() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: `pods "p" is forbidden: unable to create new content in namespace team-a because it is being terminated`,
		Details: &metav1.StatusDetails{Kind: "pods", Name: "p", Causes: []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause, Field: "metadata.namespace"}}},
	}}
}

// TestNamespaceTerminates: in a namespace that is being deleted nothing is tried again and again.
func TestNamespaceTerminates(t *testing.T) {
	for _, count := range []int{1, 5} {
		t.Run(fmt.Sprint(count, " bundles"), func(t *testing.T) {
			inWorld(t, someBundles("team-a", count), func(w *world) {
				tried := 0
				w.beforeCreate = func(*corev1.Pod) { tried++ }
				w.setRefusal(terminating())
				w.start()
				w.pass(time.Hour)
				for _, b := range w.all("team-a") {
					if u := b.Status.Unpack; u == nil || u.Reason != v1alpha1.ReasonNamespaceTerminating || u.Failures != 1 || open(u) {
						t.Errorf("bundle %s: %s", b.Name, describe(b))
					}
				}
				if tried > 2*count {
					t.Errorf("%d bundles have tried %d times to get a pod", count, tried)
				}
			})
		})
	}
}

// TestLeaderIsLost ends a reconciler between any two of its writes. The next one finishes what it has begun.
func TestLeaderIsLost(t *testing.T) {
	for writes := 1; writes <= 6; writes++ {
		t.Run(fmt.Sprint("after write ", writes), func(t *testing.T) {
			inWorld(t, someBundles("team-a", 5), func(w *world) {
				ctx, lose := context.WithCancel(w.t.Context())
				seen := 0
				count := func(action clienttesting.Action) (bool, runtime.Object, error) {
					if verb := action.GetVerb(); verb != "create" && verb != "update" && verb != "delete" {
						return false, nil, nil
					}
					w.mu.Lock()
					defer w.mu.Unlock()
					if ctx.Err() != nil {
						return true, nil, errors.New("the process is gone")
					}
					if seen++; seen == writes {
						lose()
					}
					return false, nil, nil
				}
				w.bundles.PrependReactor("*", "bundles", count)
				w.kube.PrependReactor("*", "pods", count)
				r, err := New(w.config)
				if err != nil {
					t.Fatal(err)
				}
				if err := r.Run(ctx); err != nil {
					t.Fatal(err)
				}
				w.bundles.ReactionChain, w.kube.ReactionChain = w.bundles.ReactionChain[1:], w.kube.ReactionChain[1:]
				w.start()
				w.pass(time.Minute)
				for _, b := range w.all("team-a") {
					if !open(b.Status.Unpack) || b.Status.Unpack.Failures != 0 {
						t.Errorf("bundle %s: %s", b.Name, describe(b))
					}
					w.committed(b)
				}
				w.pass(time.Second)
				if left := len(w.pods()); left != 0 {
					t.Errorf("%d pods are left", left)
				}
			})
		})
	}
}
