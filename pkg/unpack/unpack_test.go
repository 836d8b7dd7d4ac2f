// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/contract"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

func TestImageBecomesContent(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonUnpacking, "attempt 1 is running")
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
		w.expect(metav1.ConditionTrue, v1alpha1.ReasonUnpacked)
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
		// Both events are there before the reconciler looks, unless it is quick and has deleted the pod.
		w.commit()
		if err := w.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), p, p.Namespace); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		w.pass(time.Minute)
		w.expect(metav1.ConditionTrue, v1alpha1.ReasonUnpacked)
		if u := w.bundle().Status.Unpack; u.Failures != 0 || u.Attempt != 1 {
			t.Errorf("attempt %+v", u)
		}
	})
}

func TestSuccessWithoutContentIsAFailure(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		w.podSays(exited(0, ""))
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonContentNotCommitted, "attempt 1 failed")
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
			w.expect(metav1.ConditionUnknown, v1alpha1.ReasonUnpacking, "is running; the one before failed: upload: connection refused")
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
		w.expect(metav1.ConditionTrue, v1alpha1.ReasonUnpacked)
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
		"invalid name": {class: testClass(), status: waiting("InvalidImageName", "m"), reason: v1alpha1.ReasonInvalidImageReference},
		"direct":       {class: changedClass(func(c *v1alpha1.ProvisionerClass) { c.Unpack.Mode = v1alpha1.UnpackModeDirect }), reason: v1alpha1.ReasonModeNotAllowed},
		"copy of all":  {class: changedClass(func(c *v1alpha1.ProvisionerClass) { c.Unpack.Mode = v1alpha1.UnpackModeImageCopy }), reason: v1alpha1.ReasonPathNotSupported},
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
				w.pass(2 * time.Hour)
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
				class.Generation = 2
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
		// It also takes the place of an attempt that is running. What is done is done.
		w.edit(func(b *v1alpha1.Bundle) { b.Annotations[v1alpha1.AnnotationRetry] = "2" })
		if u := w.bundle().Status.Unpack; u.Attempt != 3 || w.onlyPod().UID != u.PodUID {
			t.Errorf("attempt %+v", u)
		}
		w.commit()
		w.pass(0)
		w.edit(func(b *v1alpha1.Bundle) { b.Annotations[v1alpha1.AnnotationRetry] = "3" })
		if s := w.bundle().Status; s.Unpack.Attempt != 3 || len(w.pods()) != 0 || s.LastHandledRetry != "3" {
			t.Errorf("%d pods, status %+v", len(w.pods()), s)
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
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonUnschedulable, "0/1 nodes are available")
		if u := w.bundle().Status.Unpack; u.Reason != v1alpha1.ReasonUnschedulable {
			t.Errorf("attempt %+v", u)
		}
		writes := w.writes()
		unschedulable.Conditions[0].LastProbeTime = metav1.Now()
		w.podSays(unschedulable)
		if got := w.writes(); got != writes {
			t.Errorf("%d writes without a change", got-writes)
		}
		w.podSays(corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: pod.ContainerUnpack, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}})
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonUnpacking, "attempt 1 is running")
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
		"silent":        {waiting("", ""), v1alpha1.ReasonDeadlineExceeded},
		"unschedulable": {corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "no"}}}, v1alpha1.ReasonUnschedulable},
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
