// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clienttesting "k8s.io/client-go/testing"

	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

func TestFailingPullGetsSomeGrace(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		w.podSays(waiting("ErrImagePull", "a: not found"))
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonImageNotFound, "waits", "a: not found")
		w.pass(19 * time.Second)
		w.podSays(waiting("ImagePullBackOff", `Back-off pulling image "a": ErrImagePull: a: not found`))
		if !open(w.bundle().Status.Unpack) {
			t.Fatal("given up too early")
		}
		w.pass(2 * time.Second)
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonImageNotFound, "attempt 1 failed")
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
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonPullSecretMissing, "401 Unauthorized", "(regcred)")
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
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonContainerFailed, "FailedCreatePodSandBox: no CNI")
	})
}

// TestWordsOfTheSchedulerAreNotTheNodes leaves an event of the scheduler behind on a pod that has its node.
func TestWordsOfTheSchedulerAreNotTheNodes(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		w.podSays(waiting("ContainerCreating", ""))
		if err := w.kube.Tracker().Add(&corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "team-a", Name: "e"},
			InvolvedObject: corev1.ObjectReference{UID: w.onlyPod().UID}, Type: corev1.EventTypeWarning, Reason: "FailedScheduling", Message: "0/1 nodes are available",
		}); err != nil {
			t.Fatal(err)
		}
		w.pass(16 * time.Second)
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonUnpacking, "attempt 1 is running")
	})
}

func TestSandboxWithoutMemoryFailsTheAttempt(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		w.podSays(waiting("ContainerCreating", ""))
		if err := w.kube.Tracker().Add(&corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "team-a", Name: "e"},
			InvolvedObject: corev1.ObjectReference{UID: w.onlyPod().UID}, Type: corev1.EventTypeWarning, Reason: "FailedCreatePodSandBox",
			Message: "Failed to create pod sandbox: unable to start container process: container init was OOM-killed (memory limit too low?)",
		}); err != nil {
			t.Fatal(err)
		}
		w.pass(16 * time.Second)
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonOutOfMemory, "attempt 1 failed", "unpack.podTemplate.resources")
	})
}

// TestClassMendsAnAttemptThatWaits changes the class while its pod waits, which the pod hears nothing of.
func TestClassMendsAnAttemptThatWaits(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		before := w.onlyPod().Name
		c := changedClass(func(c *v1alpha1.ProvisionerClass) {
			c.Generation = 1
			c.Unpack.PodTemplate = &v1alpha1.UnpackPodTemplate{NodeSelector: map[string]string{"disk": "ssd"}}
		})
		if _, err := w.bundles.RukpakV1alpha1().ProvisionerClasses().Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.pass(0)
		if now := w.onlyPod().Name; now != before {
			t.Errorf("nothing is known to be wrong, and pod %s was given up for %s", before, now)
		}
		w.podSays(corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes"}}})
		p := w.onlyPod()
		if u := w.bundle().Status.Unpack; p.Name == before || u.Attempt != 2 || u.Failures != 0 || p.Spec.NodeSelector["disk"] != "ssd" {
			t.Errorf("pod %s with %v, attempt %+v", p.Name, p.Spec.NodeSelector, u)
		}
	})
}

// TestQuotaThatWantsLimits: that there is room does not help a pod that does not say what it takes.
func TestQuotaThatWantsLimits(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.setRefusal(apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", errors.New("failed quota: compute: must specify limits.cpu for: unpack")))
		w.start()
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonPodRefused, "attempt 1 failed", "unpack.podTemplate.resources", "LimitRange", "must specify limits.cpu")
	})
}

func TestRefusedPods(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, test := range map[string]struct {
		err    error
		reason string
	}{
		"quota":           {apierrors.NewForbidden(pods, "p", errors.New("exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1")), v1alpha1.ReasonQuotaExceeded},
		"service account": {apierrors.NewForbidden(pods, "p", errors.New(`error looking up service account team-a/x: serviceaccount "x" not found`)), v1alpha1.ReasonServiceAccountMissing},
		"pod security":    {apierrors.NewForbidden(pods, "p", errors.New(`violates PodSecurity "restricted:latest"`)), v1alpha1.ReasonPodSecurityViolated},
		"policy":          {policyError("failed expression: object.spec.volumes.all(v, !has(v.image))"), v1alpha1.ReasonPodRefused},
		"image volumes off": {apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", field.ErrorList{
			field.Required(field.NewPath("spec", "volumes").Index(1), "must specify a volume type"),
		}), v1alpha1.ReasonImageVolumeUnsupported},
		"invalid":    {apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", nil), v1alpha1.ReasonPodRefused},
		"no volumes": {apierrors.NewBadRequest("spec.volumes"), v1alpha1.ReasonPodRefused},
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

// policyError is how the API server tells of a policy that refuses an object: without fields.
func policyError(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: `pods "p" is forbidden: ValidatingAdmissionPolicy 'v' with binding 'b' denied request: ` + message,
		Details: &metav1.StatusDetails{Name: "p", Kind: "pods", Causes: []metav1.StatusCause{{Message: message}}},
	}}
}

// TestClusterThatDropsTheImage has a cluster that does not know image volumes: what is left of the
// volume is an empty folder.
func TestClusterThatDropsTheImage(t *testing.T) {
	inWorld(t, started(changedClass(func(c *v1alpha1.ProvisionerClass) { c.Unpack.Mode = v1alpha1.UnpackModeImageVolume }), testBundle()), func(w *world) {
		w.beforeCreate = func(p *corev1.Pod) {
			for i := range p.Spec.Volumes {
				if v := &p.Spec.Volumes[i]; v.Image != nil {
					v.VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
				}
			}
		}
		w.start()
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonImageVolumeUnsupported, "attempt 1 failed", "dropped")
		if len(w.pods()) != 0 {
			t.Error("the pod is left")
		}
	})
}

// events returns what was recorded about the bundle: type, reason and note.
func (w *world) events() []string {
	w.t.Helper()
	list, err := w.kube.EventsV1().Events("").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	var told []string
	for _, e := range list.Items {
		told = append(told, e.Type+" "+e.Reason+" "+e.Note)
	}
	return told
}

func TestEventsTellOfEachChangeOnce(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		w.pass(time.Second)
		w.podSays(corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes: 1 Insufficient cpu"}}})
		w.pass(time.Second) // an event is named after its time
		w.podSays(waiting("ErrImagePull", "a: not found"))
		w.pass(21 * time.Second)
		want := []string{
			"Normal Unpacking Unpacking: attempt 1 is running",
			"Warning Unschedulable Unpacking: attempt 1 waits: no node takes the pod: 0/1 nodes: 1 Insufficient cpu",
			"Warning ImageNotFound Unpacking: attempt 1 waits: the registry has no such image: a: not found",
			"Warning ImageNotFound attempt 1 failed: the registry has no such image: a: not found",
		}
		told := w.events()
		for _, event := range want {
			if !slices.Contains(told, event) {
				t.Errorf("no event %q among %q", event, told)
			}
		}
		if len(told) != len(want) {
			t.Errorf("%d events: %q", len(told), told)
		}
		w.stop()
		w.start()
		if again := w.events(); len(again) != len(told) {
			t.Errorf("a restart tells again: %q", again)
		}
	})
}

func TestUnavailableClusterBurnsNoAttempt(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.setRefusal(apierrors.NewInternalError(errors.New("failed calling webhook")))
		w.start()
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonPodCreationFailed, "failed calling webhook")
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
		squatted := map[string]bool{}
		w.beforeCreate = func(p *corev1.Pod) {
			if squatted[p.Name] || len(squatted) == 2 {
				return
			}
			squatted[p.Name] = true
			squatter := p.DeepCopy()
			squatter.UID = "squatter"
			squatter.Annotations[v1alpha1.AnnotationAttempt] = pod.AttemptOf(w.bundle()).Proof([]byte("a key that somebody else has made"))
			if err := w.kube.Tracker().Add(squatter); err != nil {
				t.Error(err)
			}
		}
		w.start()
		w.pass(100 * time.Millisecond)
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
		conditions.SetProgress(&b.Status.Conditions, 1, metav1.ConditionUnknown, v1alpha1.ReasonUnpacking, "attempt 1 is running")
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
		w.pass(time.Second) // others of the namespace could come and share a pod
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
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonPodDeleted, "attempt 1 failed")
	})
}

// TestEvictedPodThatIsGone has a pod that is gone before its bundle is looked at.
func TestEvictedPodThatIsGone(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		p := w.onlyPod().DeepCopy()
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting"}}
		pods := corev1.SchemeGroupVersion.WithResource("pods")
		// Only what is watched tells of the eviction: who asks is told that there is no such pod.
		w.kube.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewNotFound(pods.GroupResource(), p.Name)
		})
		if err := w.kube.Tracker().Update(pods, p, p.Namespace); err != nil {
			t.Fatal(err)
		}
		if err := w.kube.Tracker().Delete(pods, p.Namespace, p.Name); err != nil {
			t.Fatal(err)
		}
		w.pass(0)
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonEvicted, "attempt 1 failed", "evicting")
	})
}
