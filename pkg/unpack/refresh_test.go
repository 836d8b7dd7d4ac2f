// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/source/image"
	"rukpak.io/apiserver/pkg/unpack/contract"
	"rukpak.io/apiserver/pkg/unpack/pod"
	"rukpak.io/apiserver/pkg/unpack/queue"
)

const (
	tagged      = "registry.example/app:v1"
	otherDigest = "sha256:fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
	otherImage  = "registry.example/app@" + otherDigest
)

// taggedBundle is unpacked from testImage, which its tag named.
func taggedBundle(changes ...func(*v1alpha1.Bundle)) *v1alpha1.Bundle {
	b := changedBundle(func(b *v1alpha1.Bundle) {
		b.Spec.Source.Image.Reference = tagged
		b.Status.Provisioner = v1alpha1.ProvisionerPlain
		b.Status.ObservedGeneration = 1
		// The clock of a bubble begins then.
		at := metav1.NewTime(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
		b.Status.Content = &v1alpha1.ContentStatus{Digest: testDigest, Size: 1, Generation: 1, UpdateTime: at}
		b.Status.ResolvedSource = &v1alpha1.ResolvedSource{Type: v1alpha1.SourceTypeImage, Image: &v1alpha1.ResolvedImage{Reference: testImage}}
		b.Status.Unpack = &v1alpha1.UnpackStatus{
			Generation: 1, Attempt: 1, Nonce: "abcdefghijklmnop", Mode: v1alpha1.UnpackModeImageVolume, ClassUID: "class-uid",
			StartTime: &at, EndTime: &at, ResolvedReference: testImage,
		}
		conditions.SetProgress(&b.Status.Conditions, 1, metav1.ConditionTrue, v1alpha1.ReasonUnpacked, "")
		conditions.SetContentAvailable(&b.Status.Conditions, 1, true, v1alpha1.ReasonAvailable, "")
		b.Status.Phase = conditions.Phase(b.Status.Conditions)
	})
	for _, change := range changes {
		change(b)
	}
	return b
}

func every(d time.Duration) func(*v1alpha1.Bundle) {
	return func(b *v1alpha1.Bundle) { b.Spec.RefreshIntervalSeconds = ptr.To(int32(d / time.Second)) }
}

// ask sets the annotation that asks for a refresh.
func (w *world) ask(value string) {
	w.t.Helper()
	w.edit(func(b *v1alpha1.Bundle) { b.Annotations = map[string]string{v1alpha1.AnnotationRefresh: value} })
}

// found is what a node says of a pod that looks.
func found(imageID string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{{
		Name: pod.ContainerResolve, ImageID: imageID, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}},
	}}}
}

// lookingPod returns the one pod there is, which does nothing but look.
func (w *world) lookingPod() *corev1.Pod {
	w.t.Helper()
	p := w.onlyPod()
	if c := p.Spec.Containers; len(c) != 1 || c[0].Name != pod.ContainerResolve || c[0].Image != tagged {
		w.t.Fatalf("the pod runs %+v", c)
	}
	return p
}

// served checks that nothing has come between a bundle and its readers.
func (w *world) served() {
	w.t.Helper()
	b := w.bundle()
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionUnpacked, v1alpha1.ConditionContentAvailable} {
		if !meta.IsStatusConditionTrue(b.Status.Conditions, kind) {
			w.t.Errorf("%s is not True: %s", kind, describe(b))
		}
	}
	if b.Status.Phase != v1alpha1.BundleUnpacked || w.stalled() {
		w.t.Errorf("phase %s, stalled %v", b.Status.Phase, w.stalled())
	}
}

// refreshed checks the condition Refreshed.
func (w *world) refreshed(status metav1.ConditionStatus, reason string, words ...string) {
	w.t.Helper()
	c := meta.FindStatusCondition(w.bundle().Status.Conditions, v1alpha1.ConditionRefreshed)
	if c == nil || c.Status != status || c.Reason != reason {
		w.t.Fatalf("Refreshed is %+v, want %s %s", c, status, reason)
	}
	for _, word := range words {
		if !strings.Contains(c.Message, word) {
			w.t.Errorf("message %q does not say %q", c.Message, word)
		}
	}
}

func TestNobodyLooksUnasked(t *testing.T) {
	inWorld(t, started(testClass(), taggedBundle()), func(w *world) {
		w.start()
		w.pass(24 * time.Hour)
		if w.writes() != 0 || len(w.pods()) != 0 {
			t.Errorf("%d writes, %d pods", w.writes(), len(w.pods()))
		}
	})
}

func TestRefreshOfWhatHasNotChanged(t *testing.T) {
	inWorld(t, started(testClass(), taggedBundle()), func(w *world) {
		w.start()
		w.ask("1")
		p := w.lookingPod()
		if made, err := pod.Made(testKey, p); err != nil || made.Number != pod.LookNumber || w.writes() != 0 {
			t.Errorf("attempt %+v, %v, %d writes", made, err, w.writes())
		}
		for _, v := range p.Spec.Volumes {
			if v.Projected != nil {
				t.Error("a pod that looks has a token")
			}
		}
		before := w.bundle()
		w.podSays(found("docker.io/somebody/else@" + testDigest))
		if len(w.pods()) != 0 || w.writes() != 1 {
			t.Errorf("%d pods, %d writes", len(w.pods()), w.writes())
		}
		b := w.bundle()
		if b.Status.LastHandledRefresh != "1" || b.Status.Refresh.LastTime == nil || b.Status.Refresh.Failures != 0 {
			t.Errorf("status %+v", b.Status)
		}
		w.refreshed(metav1.ConditionTrue, v1alpha1.ReasonRefreshed)
		meta.RemoveStatusCondition(&b.Status.Conditions, v1alpha1.ConditionRefreshed)
		before.Status.LastHandledRefresh, before.Status.Refresh = b.Status.LastHandledRefresh, b.Status.Refresh
		if !equality.Semantic.DeepEqual(before.Status, b.Status) {
			t.Errorf("more has changed: %+v was %+v", b.Status, before.Status)
		}
		w.ask("2")
		conditionsBefore := w.bundle().Status.Conditions
		w.pass(time.Minute)
		w.podSays(found(testImage))
		if !equality.Semantic.DeepEqual(conditionsBefore, w.bundle().Status.Conditions) || w.writes() != 2 {
			t.Errorf("%d writes, conditions %+v", w.writes(), w.bundle().Status.Conditions)
		}
		w.served()
	})
}

func TestRefreshOfWhatHasMoved(t *testing.T) {
	inWorld(t, started(testClass(), taggedBundle()), func(w *world) {
		w.start()
		w.ask("1")
		looking := w.lookingPod().Name
		w.podSays(found("registry.example/app@" + otherDigest))
		p, u := w.onlyPod(), w.bundle().Status.Unpack
		if p.Name == looking || u.PodUID != p.UID || !u.Refresh || u.ResolvedReference != otherImage || u.Attempt != 2 {
			t.Fatalf("pod %s, attempt %+v", p.Name, u)
		}
		// The tag may move again: it is not asked a second time.
		if got := pod.ResolvedReference(p, tagged); got != otherImage {
			t.Errorf("the attempt takes %q", got)
		}
		w.served()
		w.podSays(corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "no"}}})
		w.served()
		if got := w.bundle().Status.LastHandledRefresh; got != "1" {
			t.Errorf("lastHandledRefresh %q", got)
		}
		w.commit()
		w.pass(0)
		w.served()
		if len(w.pods()) != 0 {
			t.Error("the pod is left")
		}
		writes := w.writes()
		w.pass(24 * time.Hour)
		if w.writes() != writes || len(w.pods()) != 0 {
			t.Errorf("%d writes and %d pods afterwards", w.writes()-writes, len(w.pods()))
		}
	})
}

func TestFailedRefreshLeavesWhatIsServed(t *testing.T) {
	for name, test := range map[string]struct {
		look, attempt corev1.PodStatus // the latter where the look finds another image
		reason        string
		final         bool
	}{
		"the tag is gone":      {look: lookWaits("ErrImagePull", "v1: not found"), reason: v1alpha1.ReasonImageNotFound},
		"nobody says a digest": {look: found(testDigest), reason: v1alpha1.ReasonDigestUnknown},
		"no room on the nodes": {look: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}, reason: v1alpha1.ReasonEvicted},
		"the upload fails":     {look: found(otherImage), attempt: exited(1, `{"reason":"UploadFailed","message":"m"}`), reason: contract.ReasonUploadFailed},
		"it is refused":        {look: found(otherImage), attempt: exited(1, `{"reason":"ContentRefused","message":"m"}`), reason: contract.ReasonContentRefused, final: true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, started(testClass(), taggedBundle()), func(w *world) {
				w.start()
				w.ask("1")
				w.lookingPod()
				fail := func() {
					w.podSays(test.look)
					if test.attempt.Phase != "" {
						w.podSays(test.attempt)
					} else {
						w.pass(21 * time.Second)
					}
				}
				fail()
				w.refreshed(metav1.ConditionFalse, test.reason, "is served")
				w.served()
				if b := w.bundle(); b.Status.LastHandledRefresh != "1" || b.Status.Refresh.Failures != 1 || (b.Status.Refresh.NextTime == nil) != test.final {
					t.Errorf("status %+v", b.Status.Refresh)
				}
				if test.final {
					w.pass(24 * time.Hour)
					if len(w.pods()) != 0 {
						t.Error("it is tried again by itself")
					}
					w.edit(func(b *v1alpha1.Bundle) { b.Annotations[v1alpha1.AnnotationRetry] = "1" })
				} else {
					w.pass(10 * time.Second)
				}
				// The same again changes no word, and the third time is a success.
				before := w.bundle().Status.Conditions
				w.lookingPod()
				fail()
				if !equality.Semantic.DeepEqual(before, w.bundle().Status.Conditions) || w.bundle().Status.Refresh.Failures != 2 {
					t.Errorf("refresh %+v, conditions %+v", w.bundle().Status.Refresh, w.bundle().Status.Conditions)
				}
				w.ask("2")
				w.podSays(found(testImage))
				w.refreshed(metav1.ConditionTrue, v1alpha1.ReasonRefreshed)
				if r := w.bundle().Status.Refresh; r.Failures != 0 || r.NextTime != nil || r.Refused != "" {
					t.Errorf("refresh %+v", r)
				}
			})
		})
	}
}

// lookWaits is a pod that looks and does not get on.
func lookWaits(reason, message string) corev1.PodStatus {
	status := waiting(reason, message)
	status.ContainerStatuses[0].Name = pod.ContainerResolve
	return status
}

// TestRefusedImageIsNotTriedAgain looks again and again at a tag that names an image which was refused.
func TestRefusedImageIsNotTriedAgain(t *testing.T) {
	inWorld(t, started(testClass(), taggedBundle(every(time.Hour))), func(w *world) {
		w.start()
		untilLook := func() {
			for len(w.pods()) == 0 && time.Now().Year() == 2000 {
				w.pass(time.Minute)
			}
			w.lookingPod()
		}
		untilLook()
		w.podSays(found(otherImage))
		w.podSays(exited(1, `{"reason":"LimitExceeded","message":"m"}`))
		attempt := w.bundle().Status.Unpack.Attempt
		for i := range 3 {
			untilLook()
			if i == 1 {
				// A look that comes to nothing does not make it forgotten.
				w.podSays(corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"})
				w.refreshed(metav1.ConditionFalse, v1alpha1.ReasonEvicted)
				untilLook()
			}
			w.podSays(found(otherImage))
			if u := w.bundle().Status.Unpack; len(w.pods()) != 0 || u.Attempt != attempt {
				t.Fatalf("%d pods, attempt %+v", len(w.pods()), u)
			}
			w.refreshed(metav1.ConditionFalse, contract.ReasonLimitExceeded)
		}
		class := testClass()
		class.Generation = 2
		if _, err := w.bundles.RukpakV1alpha1().ProvisionerClasses().Update(t.Context(), class, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.pass(0)
		w.lookingPod()
		w.podSays(found(otherImage))
		if u := w.bundle().Status.Unpack; u.Attempt != attempt+1 || w.onlyPod().UID != u.PodUID {
			t.Errorf("after the change of the class: attempt %+v", u)
		}
	})
}

func TestRefreshInterval(t *testing.T) {
	const interval = 10 * time.Minute
	inWorld(t, started(testClass(), taggedBundle(every(interval))), func(w *world) {
		w.start()
		var looks []time.Time
		last := time.Now()
		for range 6 {
			w.pass(interval*9/10 - 5*time.Second)
			if len(w.pods()) != 0 {
				t.Fatalf("looked %v after the last time", time.Since(last))
			}
			// A restart forgets nothing.
			w.stop()
			w.start()
			for len(w.pods()) == 0 && time.Since(last) <= interval*11/10+5*time.Second {
				w.pass(time.Second)
			}
			looks = append(looks, w.lookingPod().CreationTimestamp.Time)
			w.podSays(found(testImage))
			if got := time.Since(last); got > interval*11/10+5*time.Second {
				t.Errorf("looked after %v", got)
			}
			last = time.Now()
		}
		if w.writes() != len(looks) {
			t.Errorf("%d writes for %d looks", w.writes(), len(looks))
		}
		w.follow(func(b *v1alpha1.Bundle) { b.Spec.Suspend = true })
		w.pass(time.Hour)
		if len(w.pods()) != 0 {
			t.Error("a suspended bundle is refreshed")
		}
		w.served()
	})
}

// TestIntervalsDiffer has looks of several bundles fall on different times.
func TestIntervalsDiffer(t *testing.T) {
	seen := map[time.Duration]bool{}
	for _, uid := range []types.UID{"a", "b", "c", "d", "e"} {
		b := taggedBundle(every(time.Hour))
		b.UID = uid
		w := &work{bundle: b, now: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)}
		interval, ok := w.interval()
		if !ok || interval < 54*time.Minute || interval > 66*time.Minute {
			t.Errorf("the interval is %v", interval)
		}
		seen[interval] = true
	}
	if len(seen) < 4 {
		t.Errorf("the intervals are %v", seen)
	}
}

func TestLooksAreSuspendedAndCancelled(t *testing.T) {
	for name, change := range map[string]func(*world){
		"suspended": func(w *world) {
			w.follow(func(b *v1alpha1.Bundle) { b.Spec.Suspend = true })
		},
		"deleted": func(w *world) {
			if err := w.bundles.Tracker().Delete(group, "team-a", "app"); err != nil {
				w.t.Fatal(err)
			}
		},
		"another image": func(w *world) {
			w.edit(func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Reference = otherImage })
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, started(testClass(), taggedBundle()), func(w *world) {
				w.start()
				w.ask("1")
				looking := w.lookingPod().Name
				change(w)
				w.pass(0)
				for _, p := range w.pods() {
					if p.Name == looking {
						t.Error("the pod that looks is left")
					}
				}
				if name != "suspended" {
					return
				}
				w.pass(time.Hour)
				if len(w.pods()) != 0 || w.bundle().Status.LastHandledRefresh != "" {
					t.Error("somebody looks")
				}
				w.served()
				w.follow(func(b *v1alpha1.Bundle) { b.Spec.Suspend = false })
				w.lookingPod()
			})
		})
	}
}

// follow changes the spec in something that asks for the same content, which the server lets follow then.
func (w *world) follow(change func(*v1alpha1.Bundle)) {
	w.t.Helper()
	b := w.bundle()
	change(b)
	b.Generation++
	b.Status.Content.Generation = b.Generation
	for i := range b.Status.Conditions {
		b.Status.Conditions[i].ObservedGeneration = b.Generation
	}
	if err := w.store(b); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

func TestSuspendEndsARefreshThatGoesOnAfterwards(t *testing.T) {
	inWorld(t, started(testClass(), taggedBundle()), func(w *world) {
		w.start()
		w.ask("1")
		w.podSays(found(otherImage))
		w.onlyPod()
		w.follow(func(b *v1alpha1.Bundle) { b.Spec.Suspend = true })
		if u := w.bundle().Status.Unpack; open(u) || len(w.pods()) != 0 {
			t.Errorf("attempt %+v, %d pods", u, len(w.pods()))
		}
		w.follow(func(b *v1alpha1.Bundle) { b.Spec.Suspend = false })
		w.lookingPod()
	})
}

func TestDigestIsNeverLookedUp(t *testing.T) {
	inWorld(t, started(testClass(), taggedBundle(every(time.Minute), func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Reference = testImage })), func(w *world) {
		w.start()
		w.pass(time.Hour)
		if w.writes() != 0 {
			t.Errorf("%d writes", w.writes())
		}
		w.ask("1")
		if b := w.bundle(); b.Status.LastHandledRefresh != "1" || b.Status.Refresh != nil || len(w.pods()) != 0 {
			t.Errorf("status %+v, %d pods", b.Status, len(w.pods()))
		}
	})
}

// TestRetryOfWhatIsUnpackedIsNoRefresh separates the two annotations.
func TestRetryOfWhatIsUnpackedIsNoRefresh(t *testing.T) {
	inWorld(t, started(testClass(), taggedBundle()), func(w *world) {
		w.start()
		w.edit(func(b *v1alpha1.Bundle) { b.Annotations = map[string]string{v1alpha1.AnnotationRetry: "1"} })
		if b := w.bundle(); b.Status.LastHandledRetry != "1" || len(w.pods()) != 0 || b.Status.Unpack.Attempt != 1 {
			t.Errorf("status %+v, %d pods", b.Status, len(w.pods()))
		}
		w.served()
	})
}

func TestRefreshAsksTheClusterOnceItAnswers(t *testing.T) {
	inWorld(t, started(testClass(), taggedBundle()), func(w *world) {
		w.setRefusal(apierrors.NewInternalError(errors.New("failed calling webhook")))
		w.start()
		w.ask("1")
		w.pass(time.Minute)
		if w.writes() != 0 {
			t.Errorf("%d writes", w.writes())
		}
		w.setRefusal(apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", errors.New("exceeded quota: small")))
		for range int(longestRetry / time.Second) {
			if w.pass(time.Second); w.writes() > 0 {
				break
			}
		}
		w.refreshed(metav1.ConditionFalse, v1alpha1.ReasonQuotaExceeded)
		w.setRefusal(nil)
		w.pass(10 * time.Second)
		w.lookingPod()
	})
}

func TestSquattedLookIsNotBelieved(t *testing.T) {
	inWorld(t, started(testClass(), taggedBundle()), func(w *world) {
		once := true
		w.beforeCreate = func(p *corev1.Pod) {
			if !once {
				return
			}
			once = false
			squatter := p.DeepCopy()
			squatter.UID = "squatter"
			squatter.Annotations[v1alpha1.AnnotationAttempt] = "1.0.aaaaaaaaaaaaaaaa.AAAA"
			squatter.Status = found(otherImage)
			if err := w.kube.Tracker().Add(squatter); err != nil {
				t.Error(err)
			}
		}
		w.start()
		w.ask("1")
		w.refreshed(metav1.ConditionFalse, v1alpha1.ReasonPodNameTaken)
		if w.bundle().Status.Unpack.Attempt != 1 {
			t.Error("somebody else's word was taken")
		}
	})
}

// TestLookWithoutItsServiceAccount looks for an account whose pull secrets the pod would have to name.
func TestLookWithoutItsServiceAccount(t *testing.T) {
	withSecret := func(b *v1alpha1.Bundle) { b.Spec.ImagePullSecrets = []v1alpha1.LocalObjectReference{{Name: "pull"}} }
	inWorld(t, started(testClass(), taggedBundle(withSecret)), func(w *world) {
		w.start()
		w.ask("1")
		w.refreshed(metav1.ConditionFalse, v1alpha1.ReasonServiceAccountMissing, "no such service account")
		w.served()
	})
}

// TestPanicOverALook has the server survive what it fails over.
func TestPanicOverALook(t *testing.T) {
	inWorld(t, started(testClass(), taggedBundle()), func(w *world) {
		p := &puller{}
		standalone(w, p)
		w.start()
		p.set(func() { p.panics = true })
		w.ask("1")
		w.refreshed(metav1.ConditionFalse, v1alpha1.ReasonInternalError, "its log says more")
		p.set(func() { p.panics = false })
		w.ask("2")
		w.refreshed(metav1.ConditionTrue, v1alpha1.ReasonRefreshed)
	})
}

// TestWhatIsRememberedOfLooksGoes looks, fails a while, and ends in every way that there is.
func TestWhatIsRememberedOfLooksGoes(t *testing.T) {
	for name, end := range map[string]func(*world){
		"it succeeds": func(w *world) { w.podSays(found(testImage)) },
		"it fails":    func(w *world) { w.pass(21 * time.Second) },
		"suspended":   func(w *world) { w.follow(func(b *v1alpha1.Bundle) { b.Spec.Suspend = true }) },
		"deleted": func(w *world) {
			if err := w.bundles.Tracker().Delete(group, "team-a", "app"); err != nil {
				w.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, started(testClass(), taggedBundle()), func(w *world) {
				w.start()
				w.ask("1")
				w.podSays(lookWaits("ErrImagePull", "v1: connection refused"))
				if w.remembered() == 0 {
					t.Fatal("nothing is remembered: the test tests nothing")
				}
				end(w)
				w.pass(0)
				if n := w.remembered(); n != 0 {
					t.Errorf("%d looks are remembered", n)
				}
			})
		})
	}
}

// TestHangingLooksOfOthers has every look of one namespace hang, and another look all the same.
func TestHangingLooksOfOthers(t *testing.T) {
	inWorld(t, started(testClass(), taggedBundle()), func(w *world) {
		for i := range 3 * looksAtOnce {
			w.create(taggedBundle(func(b *v1alpha1.Bundle) {
				b.Namespace, b.Name, b.UID = "team-b", fmt.Sprint("app-", i), types.UID(fmt.Sprint(i))
				b.Annotations = map[string]string{v1alpha1.AnnotationRefresh: "1"}
			}))
		}
		w.start()
		w.ask("1")
		w.lookingPod()
		w.podSays(found(testImage))
		w.refreshed(metav1.ConditionTrue, v1alpha1.ReasonRefreshed)
	})
}

// TestLooksAreNotOvertaken frees a place that somebody waits for, and has another come first.
func TestLooksAreNotOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var woken []string
		l := newLooks(func(name cache.ObjectName) { woken = append(woken, name.Name) })
		comes := func(name string) bool {
			time.Sleep(time.Second)
			return l.begin(cache.NewObjectName("team-a", name), "", false)
		}
		running := 0
		for comes(fmt.Sprint("a", running)) {
			running++
		}
		last := fmt.Sprint("a", running)
		l.end(cache.NewObjectName("team-a", "a0"))
		if !slices.Equal(woken, []string{last}) {
			t.Errorf("woken are %q, want %q", woken, last)
		}
		if comes("a-newcomer") {
			t.Error("a newcomer takes the place of who was woken")
		}
		if !comes(last) {
			t.Error("who was woken has no place")
		}
	})
}

func TestManyLooksTakeTurns(t *testing.T) {
	const many = 3 * looksAtOnce
	inWorld(t, started(testClass()), func(w *world) {
		for i := range many {
			w.create(taggedBundle(func(b *v1alpha1.Bundle) {
				b.Name, b.UID = fmt.Sprint("app-", i), types.UID(fmt.Sprint(i))
				b.Annotations = map[string]string{v1alpha1.AnnotationRefresh: "1"}
			}))
		}
		w.start()
		seen := 0
		for range many {
			pods := w.pods()
			if len(pods) == 0 {
				break
			}
			if len(pods) > looksPerNamespace {
				t.Fatalf("%d pods at once", len(pods))
			}
			p := pods[0].DeepCopy()
			p.Status = found(testImage)
			if err := w.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), p, p.Namespace); err != nil {
				t.Fatal(err)
			}
			w.pass(0)
			seen++
		}
		if seen != many || len(w.pods()) != 0 {
			t.Errorf("%d of %d have looked, %d pods are left", seen, many, len(w.pods()))
		}
	})
}

func TestDirectRefresh(t *testing.T) {
	inWorld(t, started(testClass(), taggedBundle(every(time.Hour))), func(w *world) {
		p := &puller{content: "new"}
		standalone(w, p)
		w.start()
		w.pass(67 * time.Minute)
		if p.packs != 0 || w.writes() != 1 {
			t.Errorf("%d pulls, %d writes", p.packs, w.writes())
		}
		w.refreshed(metav1.ConditionTrue, v1alpha1.ReasonRefreshed)
		p.set(func() { p.resolve = image.ErrUnreachable })
		w.ask("1")
		w.refreshed(metav1.ConditionFalse, v1alpha1.ReasonRegistryUnreachable)
		p.set(func() { p.resolve, p.resolved = nil, otherImage })
		w.pass(10 * time.Second)
		if u := w.bundle().Status.Unpack; p.packs != 1 || u.Attempt != 2 || u.ResolvedReference != otherImage || open(u) {
			t.Errorf("%d pulls, attempt %+v", p.packs, u)
		}
		w.served()
	})
}

// What a look has found is not looked for again while the bundle waits for its turn, which it keeps.
func TestARefreshKeepsItsTurn(t *testing.T) {
	inWorld(t, append(someBundles("team-a", 3), taggedBundle()), func(w *world) {
		p := &puller{block: make(chan struct{}), resolved: otherImage}
		standalone(w, p)
		w.config.Limits = queue.Limits{Total: 1, PerNamespace: 1, Share: 1}
		w.start()
		w.pass(time.Second)
		w.ask("1")
		w.pass(time.Minute)
		if p.looks != 1 {
			t.Errorf("it was looked for %d times", p.looks)
		}
		close(p.block)
		w.pass(time.Minute)
		if u := w.bundle().Status.Unpack; u.ResolvedReference != otherImage || open(u) {
			t.Errorf("the attempt is %+v", u)
		}
	})
}

// TestRefreshesTakeTurns finds another image for more bundles than may be unpacked at once.
func TestRefreshesTakeTurns(t *testing.T) {
	const many, limit = 12, 2
	objects := []runtime.Object{testClass()}
	for i := range many {
		objects = append(objects, taggedBundle(func(b *v1alpha1.Bundle) {
			b.Name = fmt.Sprintf("b%02d", i)
			b.UID = types.UID(b.Name)
			b.Annotations = map[string]string{v1alpha1.AnnotationRefresh: "1"}
		}))
	}
	inWorld(t, objects, func(w *world) {
		w.config.Limits = queue.Limits{Total: limit, PerNamespace: limit, Share: 1}
		w.start()
		done := 0
		for range 60 {
			for _, p := range w.pods() {
				if p.Spec.Containers[0].Name == pod.ContainerResolve && p.Status.Phase == "" {
					w.says(&p, found("registry.example/app@"+otherDigest))
				}
			}
			unpacking := 0
			for _, b := range w.all("team-a") {
				if open(b.Status.Unpack) {
					unpacking++
				}
			}
			if unpacking > limit {
				t.Fatalf("%d bundles are unpacked at once", unpacking)
			}
			done = 0
			for _, b := range w.all("team-a") {
				switch u := b.Status.Unpack; {
				case open(u) && u.PodUID != "":
					w.committed(b)
				case !open(u) && b.Status.LastHandledRefresh == "1":
					done++
				}
			}
			w.pass(time.Second)
		}
		if done != many || len(w.pods()) > 0 {
			t.Errorf("%d of %d are refreshed, %d pods are left", done, many, len(w.pods()))
		}
	})
}
