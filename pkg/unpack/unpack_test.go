// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/contract"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

func TestImageBecomesContent(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		w.expect(metav1.ConditionUnknown, conditions.ReasonUnpacking, "attempt 1 is running")
		u, p := w.bundle().Status.Unpack, w.onlyPod()
		if u.Mode != v1alpha1.UnpackModeImageVolume || u.PodName != p.Name || u.PodUID != p.UID || u.ClassUID != "class-uid" || u.ClassResourceVersion == "" || u.Generation != 1 {
			t.Errorf("attempt %+v of pod %s %s", u, p.Name, p.UID)
		}
		if got := w.bundle().Status; got.Provisioner != v1alpha1.ProvisionerPlain || got.ObservedGeneration != 1 {
			t.Errorf("status %+v", got)
		}
		// Two writes: the attempt, and its pod.
		if got := w.writes(); got != 2 {
			t.Errorf("%d status writes", got)
		}
		w.commit()
		w.pass(0)
		if got := w.pods(); len(got) != 0 {
			t.Errorf("%d pods after the commit", len(got))
		}
		w.expect(metav1.ConditionTrue, conditions.ReasonUnpacked)
		writes := w.writes()
		w.pass(24 * time.Hour)
		if got := w.writes(); got != writes || len(w.pods()) != 0 {
			t.Errorf("%d writes and %d pods for a bundle that is done", got-writes, len(w.pods()))
		}
	})
}

func TestCommitSeenAfterTheExitOfThePod(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		p := w.onlyPod().DeepCopy()
		p.Status = exited(0, "")
		// Both events are there before the reconciler looks.
		w.commit()
		if err := w.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), p, p.Namespace); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Minute)
		w.expect(metav1.ConditionTrue, conditions.ReasonUnpacked)
		if u := w.bundle().Status.Unpack; u.Failures != 0 || u.Attempt != 1 {
			t.Errorf("attempt %+v", u)
		}
	})
}

func TestSuccessWithoutContentIsAFailure(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		w.podSays(exited(0, ""))
		w.expect(metav1.ConditionUnknown, ReasonContentNotCommitted, "attempt 1 failed")
	})
}

func TestFailuresBackOffAndGoOnSlowly(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		// The class allows two failures.
		for i, wait := range []time.Duration{5 * time.Second, 10 * time.Second} {
			w.podSays(exited(1, `{"reason":"UploadFailed","message":"upload: connection refused"}`))
			w.expect(metav1.ConditionUnknown, contract.ReasonUploadFailed, "connection refused", "the next one begins at")
			if len(w.pods()) != 0 {
				t.Fatal("the pod of a failed attempt is left")
			}
			w.pass(wait - time.Second)
			if len(w.pods()) != 0 {
				t.Fatalf("attempt %d began too early", i+2)
			}
			w.pass(2 * time.Second)
			if u := w.bundle().Status.Unpack; u.Attempt != int32(i+2) || u.Failures != int32(i+1) {
				t.Fatalf("attempt %+v", u)
			}
			w.expect(metav1.ConditionUnknown, conditions.ReasonUnpacking, "is running; the one before failed: upload: connection refused")
		}
		w.podSays(exited(1, `{"reason":"UploadFailed","message":"upload: connection refused"}`))
		w.expect(metav1.ConditionFalse, contract.ReasonUploadFailed, "connection refused")
		if phase := w.bundle().Status.Phase; phase != v1alpha1.BundleFailing || w.stalled() {
			t.Errorf("phase %s, stalled %v", phase, w.stalled())
		}
		before := w.bundle().Status.Conditions
		for range 3 {
			w.pass(29 * time.Minute)
			if len(w.pods()) != 0 {
				t.Fatal("the slow attempt began too early")
			}
			w.pass(2 * time.Minute)
			w.podSays(exited(1, `{"reason":"UploadFailed","message":"upload: connection refused"}`))
		}
		for i, c := range w.bundle().Status.Conditions {
			if c != before[i] {
				t.Errorf("condition %+v was %+v", c, before[i])
			}
		}
		if u := w.bundle().Status.Unpack; u.Attempt != 6 || u.Failures != 6 {
			t.Errorf("attempt %+v", u)
		}
		w.pass(31 * time.Minute)
		w.commit()
		w.pass(0)
		w.expect(metav1.ConditionTrue, conditions.ReasonUnpacked)
	})
}

func TestBackoffSurvivesARestart(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		w.podSays(exited(1, ""))
		w.stop()
		w.start()
		if len(w.pods()) != 0 {
			t.Fatal("a restart cut the wait short")
		}
		w.pass(7 * time.Second)
		if u := w.bundle().Status.Unpack; u.Attempt != 2 || u.Failures != 1 {
			t.Errorf("attempt %+v", u)
		}
		w.onlyPod()
	})
}

func TestCausesThatStayAreNotTriedAgain(t *testing.T) {
	for name, test := range map[string]struct {
		class  *v1alpha1.ProvisionerClass
		status corev1.PodStatus // of the pod, if there is one
		reason string
	}{
		"refused":      {class: testClass(), status: exited(1, `{"reason":"ContentRefused","message":"m"}`), reason: contract.ReasonContentRefused},
		"limit":        {class: testClass(), status: exited(1, `{"reason":"LimitExceeded","message":"m"}`), reason: contract.ReasonLimitExceeded},
		"invalid name": {class: testClass(), status: waiting("InvalidImageName", "m"), reason: pod.ReasonInvalidImageReference},
		"direct":       {class: changedClass(func(c *v1alpha1.ProvisionerClass) { c.Unpack.Mode = v1alpha1.UnpackModeDirect }), reason: ReasonModeNotAllowed},
		"copy of all":  {class: changedClass(func(c *v1alpha1.ProvisionerClass) { c.Unpack.Mode = v1alpha1.UnpackModeImageCopy }), reason: ReasonPathNotSupported},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, started(test.class, testBundle()), func(w *world) {
				w.start()
				if test.status.Phase != "" {
					w.podSays(test.status)
				}
				w.expect(metav1.ConditionFalse, test.reason)
				if !w.stalled() {
					t.Error("not stalled")
				}
				w.pass(48 * time.Hour)
				if u := w.bundle().Status.Unpack; u.Attempt != 1 || len(w.pods()) != 0 {
					t.Errorf("attempt %+v, %d pods", u, len(w.pods()))
				}
				// What helps: the annotation, a change of the class, a change of the spec.
				if test.status.Phase != "" {
					w.edit(func(b *v1alpha1.Bundle) { b.Annotations = map[string]string{v1alpha1.AnnotationRetry: "1"} })
					if b := w.bundle(); b.Status.Unpack.Attempt != 2 || b.Status.Unpack.Failures != 0 || b.Status.LastHandledRetry != "1" || w.stalled() {
						t.Errorf("after the annotation: %s", describe(b))
					}
					w.podSays(test.status)
				}
				class := testClass()
				if _, err := w.bundles.RukpakV1alpha1().ProvisionerClasses().Update(t.Context(), class, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				w.pass(0)
				if b := w.bundle(); w.stalled() || !open(b.Status.Unpack) || b.Status.Unpack.Failures != 0 {
					t.Errorf("after the change of the class: %s", describe(b))
				}
			})
		})
	}
}

func TestRetryAnnotationCutsTheWaitShort(t *testing.T) {
	inWorld(t, started(testClass(), changedBundle(func(b *v1alpha1.Bundle) {
		b.Annotations = map[string]string{v1alpha1.AnnotationRetry: "0"}
	})), func(w *world) {
		w.start()
		if got := w.bundle().Status.LastHandledRetry; got != "0" {
			t.Errorf("lastHandledRetry %q", got)
		}
		first := w.onlyPod().Name
		w.podSays(exited(1, ""))
		w.edit(func(b *v1alpha1.Bundle) { b.Annotations[v1alpha1.AnnotationRetry] = "1" })
		if u := w.bundle().Status.Unpack; u.Attempt != 2 || u.Failures != 0 || w.onlyPod().Name == first {
			t.Errorf("attempt %+v", u)
		}
		// It also takes the place of an attempt that is running, and refreshes what is done.
		w.edit(func(b *v1alpha1.Bundle) { b.Annotations[v1alpha1.AnnotationRetry] = "2" })
		if u := w.bundle().Status.Unpack; u.Attempt != 3 || w.onlyPod().UID != u.PodUID {
			t.Errorf("attempt %+v", u)
		}
		w.commit()
		w.pass(0)
		w.edit(func(b *v1alpha1.Bundle) { b.Annotations[v1alpha1.AnnotationRetry] = "3" })
		if u := w.bundle().Status.Unpack; u.Attempt != 4 || w.onlyPod().UID != u.PodUID {
			t.Errorf("attempt %+v", u)
		}
	})
}

func TestNewSpecTakesTheAttemptsPlace(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		old := w.onlyPod().UID
		w.edit(func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Path = "/manifests" })
		p, u := w.onlyPod(), w.bundle().Status.Unpack
		if p.UID == old || u.PodUID != p.UID || u.Generation != 2 || u.Attempt != 1 {
			t.Errorf("pod %s, attempt %+v", p.UID, u)
		}
	})
}

func TestWaitingIsSaidInWordsOnceAndMended(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		unschedulable := corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes are available",
		}}}
		w.podSays(unschedulable)
		w.expect(metav1.ConditionUnknown, pod.ReasonUnschedulable, "0/1 nodes are available")
		if u := w.bundle().Status.Unpack; u.Reason != pod.ReasonUnschedulable {
			t.Errorf("attempt %+v", u)
		}
		writes := w.writes()
		unschedulable.Conditions[0].LastProbeTime = metav1.Now()
		w.podSays(unschedulable)
		if got := w.writes(); got != writes {
			t.Errorf("%d writes without a change", got-writes)
		}
		w.podSays(corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: pod.ContainerUnpack, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}})
		w.expect(metav1.ConditionUnknown, conditions.ReasonUnpacking, "attempt 1 is running")
		if u := w.bundle().Status.Unpack; u.Reason != "" || u.Message != "" {
			t.Errorf("attempt %+v", u)
		}
	})
}

func TestDeadline(t *testing.T) {
	for name, test := range map[string]struct {
		status corev1.PodStatus
		reason string
	}{
		"silent":        {waiting("", ""), pod.ReasonDeadlineExceeded},
		"unschedulable": {corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "no"}}}, pod.ReasonUnschedulable},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, started(testClass(), testBundle()), func(w *world) {
				w.start()
				w.podSays(test.status)
				w.pass(599 * time.Second)
				if !open(w.bundle().Status.Unpack) {
					t.Fatal("ended before the deadline")
				}
				w.pass(2 * time.Second)
				w.expect(metav1.ConditionUnknown, test.reason, "10m0s")
				if len(w.pods()) != 0 {
					t.Error("the pod is left")
				}
			})
		})
	}
}

func TestFailingPullGetsSomeGrace(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		w.podSays(waiting("ErrImagePull", "a: not found"))
		w.expect(metav1.ConditionUnknown, pod.ReasonImageNotFound, "waits", "a: not found")
		w.pass(19 * time.Second)
		w.podSays(waiting("ImagePullBackOff", `Back-off pulling image "a": ErrImagePull: a: not found`))
		if !open(w.bundle().Status.Unpack) {
			t.Fatal("given up too early")
		}
		w.pass(2 * time.Second)
		w.expect(metav1.ConditionUnknown, pod.ReasonImageNotFound, "attempt 1 failed")
	})
}

func TestMissingPullSecretIsNamed(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		p := w.onlyPod()
		for _, reason := range []string{"Failed", "FailedToRetrieveImagePullSecret"} {
			if err := w.kube.Tracker().Add(&corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{Namespace: "team-a", Name: strings.ToLower(reason)},
				InvolvedObject: corev1.ObjectReference{UID: p.UID}, Type: corev1.EventTypeWarning, Reason: reason,
				Message: "Unable to retrieve some image pull secrets (regcred)",
			}); err != nil {
				t.Fatal(err)
			}
		}
		w.podSays(waiting("ErrImagePull", "401 Unauthorized"))
		w.pass(21 * time.Second)
		w.expect(metav1.ConditionUnknown, pod.ReasonPullSecretMissing, "401 Unauthorized", "(regcred)")
	})
}

func TestQuietPodIsAskedForItsEvents(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		w.podSays(waiting("ContainerCreating", ""))
		if err := w.kube.Tracker().Add(&corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "team-a", Name: "e"},
			InvolvedObject: corev1.ObjectReference{UID: w.onlyPod().UID}, Type: corev1.EventTypeWarning, Reason: "FailedCreatePodSandBox", Message: "no CNI",
		}); err != nil {
			t.Fatal(err)
		}
		w.pass(16 * time.Second)
		w.expect(metav1.ConditionUnknown, pod.ReasonContainerFailed, "FailedCreatePodSandBox: no CNI")
	})
}

func TestRefusedPods(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, test := range map[string]struct {
		err    error
		reason string
	}{
		"quota":           {apierrors.NewForbidden(pods, "p", errors.New("exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1")), ReasonQuotaExceeded},
		"service account": {apierrors.NewForbidden(pods, "p", errors.New(`error looking up service account team-a/x: serviceaccount "x" not found`)), ReasonServiceAccountMissing},
		"pod security":    {apierrors.NewForbidden(pods, "p", errors.New(`violates PodSecurity "restricted:latest"`)), ReasonPodRefused},
		"invalid":         {apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", nil), ReasonPodRefused},
		"no volumes":      {apierrors.NewBadRequest("spec.volumes"), ReasonPodRefused},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, started(testClass(), testBundle()), func(w *world) {
				w.setRefusal(test.err)
				w.start()
				w.expect(metav1.ConditionUnknown, test.reason, "attempt 1 failed", "the cluster refuses the pod")
				w.setRefusal(nil)
				w.pass(6 * time.Second)
				w.onlyPod()
			})
		})
	}
}

func TestUnavailableClusterBurnsNoAttempt(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.setRefusal(apierrors.NewInternalError(errors.New("failed calling webhook")))
		w.start()
		w.expect(metav1.ConditionUnknown, ReasonPodCreationFailed, "failed calling webhook")
		nonce := w.bundle().Status.Unpack.Nonce
		w.pass(time.Minute)
		w.setRefusal(nil)
		w.pass(longestRetry + time.Second)
		if u := w.bundle().Status.Unpack; u.Attempt != 1 || u.Nonce != nonce || u.PodUID != w.onlyPod().UID {
			t.Errorf("attempt %+v", u)
		}
	})
}

func TestSquattedNameIsNotAdopted(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		squats := 0
		w.beforeCreate = func(p *corev1.Pod) {
			if squats++; squats > 2 {
				return
			}
			squatter := p.DeepCopy()
			squatter.UID = "squatter"
			squatter.Annotations[v1alpha1.AnnotationAttempt] = pod.AttemptOf(w.bundle()).Proof([]byte("a key that somebody else has made"))
			if err := w.kube.Tracker().Add(squatter); err != nil {
				t.Error(err)
			}
		}
		w.start()
		w.pass(time.Second)
		u := w.bundle().Status.Unpack
		if u.Attempt != 3 || u.Failures != 2 || u.PodUID == "squatter" || u.PodUID == "" {
			t.Errorf("attempt %+v", u)
		}
		left := 0
		for _, p := range w.pods() {
			if p.UID == "squatter" {
				left++
			}
		}
		if left != 2 {
			t.Errorf("%d pods of somebody else are left of 2", left)
		}
	})
}

// TestCrashes continues from each state that a crash can leave.
func TestCrashes(t *testing.T) {
	attempt := func(b *v1alpha1.Bundle) {
		b.Status.Unpack = &v1alpha1.UnpackStatus{
			Generation: 1, Attempt: 1, Nonce: "abcdefghijklmnop", Mode: v1alpha1.UnpackModeImageVolume,
			PodName: "app-abcdefghijklmnop", ClassUID: "class-uid", StartTime: &metav1.Time{Time: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)},
		}
		conditions.SetProgress(&b.Status.Conditions, 1, metav1.ConditionUnknown, conditions.ReasonUnpacking, "attempt 1 is running")
	}
	written := changedBundle(attempt)
	made := pod.Build(pod.Params{Bundle: written, Class: testClass(), Key: testKey, Reference: testImage, Image: "i"})
	made.UID = "pod-made"
	recorded := changedBundle(func(b *v1alpha1.Bundle) { attempt(b); b.Status.Unpack.PodUID = "pod-made" })

	for name, objects := range map[string][]runtime.Object{
		"attempt written": {written},
		"pod created":     {written, made},
		"UID recorded":    {recorded, made},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, append(objects, testClass()), func(w *world) {
				w.start()
				p, u := w.onlyPod(), w.bundle().Status.Unpack
				if u.Attempt != 1 || u.Nonce != "abcdefghijklmnop" || u.PodUID != p.UID {
					t.Fatalf("pod %s, attempt %+v", p.UID, u)
				}
				if len(objects) > 1 && p.UID != "pod-made" {
					t.Errorf("pod %s was made anew", p.UID)
				}
				w.commit()
				w.pass(0)
				if len(w.pods()) != 0 {
					t.Error("the pod is left")
				}
			})
		})
	}
}

func TestOrphanPodsAreDeletedAtStart(t *testing.T) {
	gone := changedBundle(func(b *v1alpha1.Bundle) {
		b.Name, b.UID = "gone", "gone-uid"
		b.Status.Unpack = &v1alpha1.UnpackStatus{Generation: 1, Attempt: 1, Nonce: pod.NewNonce(), PodName: "gone-pod"}
	})
	earlier := changedBundle(func(b *v1alpha1.Bundle) {
		b.Status.Unpack = &v1alpha1.UnpackStatus{Generation: 1, Attempt: 7, Nonce: pod.NewNonce(), PodName: "earlier-pod"}
	})
	orphan := func(b *v1alpha1.Bundle) *corev1.Pod {
		p := pod.Build(pod.Params{Bundle: b, Class: testClass(), Key: testKey, Reference: testImage, Image: "i"})
		p.UID = types.UID(p.Name)
		return p
	}
	foreign := orphan(earlier)
	foreign.Name, foreign.Annotations = "foreign-pod", nil
	inWorld(t, started(testClass(), testBundle(), orphan(gone), orphan(earlier), foreign), func(w *world) {
		w.start()
		var names []string
		for _, p := range w.pods() {
			if p.Name != w.bundle().Status.Unpack.PodName {
				names = append(names, p.Name)
			}
		}
		if len(names) != 1 || names[0] != "foreign-pod" {
			t.Errorf("pods left: %v", names)
		}
	})
}

func TestDeletedBundleLosesItsPod(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		w.onlyPod()
		if err := w.bundles.Tracker().Delete(group, "team-a", "app"); err != nil {
			t.Fatal(err)
		}
		w.pass(0)
		if len(w.pods()) != 0 {
			t.Error("the pod is left")
		}
	})
}

func TestDeletedPodFailsTheAttempt(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		p := w.onlyPod()
		if err := w.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "team-a", p.Name); err != nil {
			t.Fatal(err)
		}
		w.pass(0)
		w.expect(metav1.ConditionUnknown, pod.ReasonPodDeleted, "attempt 1 failed")
	})
}
