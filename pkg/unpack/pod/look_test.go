// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

func TestLook(t *testing.T) {
	for name, p := range map[string]Params{
		"image volume": testParams(v1alpha1.UnpackModeImageVolume, byTag, "/"),
		"image copy":   testParams(v1alpha1.UnpackModeImageCopy, byTag, "/manifests"),
		"tuned":        tuned(testParams(v1alpha1.UnpackModeImageVolume, byTag, "/")),
	} {
		t.Run(name, func(t *testing.T) {
			p.Bundle.Spec.Source.Image.PullPolicy = corev1.PullIfNotPresent
			look := Look(p)
			c := look.Spec.Containers
			if len(c) != 1 || c[0].Name != ContainerResolve || c[0].Image != byTag || c[0].ImagePullPolicy != corev1.PullAlways {
				t.Fatalf("containers are %+v", c)
			}
			for _, v := range look.Spec.Volumes {
				if v.Name != volumeProgram || v.Projected != nil || v.Secret != nil {
					t.Errorf("volume %+v", v)
				}
			}
			if m := c[0].VolumeMounts; len(m) != 1 || m[0].Name != volumeProgram || !m[0].ReadOnly {
				t.Errorf("mounts are %+v", m)
			}
			// In all that does not differ by what it does it is as strict as the pod of an attempt.
			attempt := Build(p)
			if *look.Spec.SecurityContext.RunAsUser != *attempt.Spec.SecurityContext.RunAsUser || *look.Spec.AutomountServiceAccountToken ||
				*look.Spec.ActiveDeadlineSeconds != *attempt.Spec.ActiveDeadlineSeconds || len(look.Spec.ImagePullSecrets) != len(attempt.Spec.ImagePullSecrets) {
				t.Errorf("spec is %+v", look.Spec)
			}
			if made, err := Made(p.Key, look); err != nil || made != AttemptOf(p.Bundle) {
				t.Errorf("made for %+v, %v", made, err)
			}
		})
	}
	p := testParams(v1alpha1.UnpackModeImageVolume, byTag, "/")
	p.Bundle.Spec.Source.Image.PullPolicy = corev1.PullNever
	if got := Look(p).Spec.Containers[0].ImagePullPolicy; got != corev1.PullNever {
		t.Errorf("where nothing is to be pulled the policy is %s", got)
	}
}

func TestIsLook(t *testing.T) {
	p := testParams(v1alpha1.UnpackModeImageVolume, byTag, "/")
	attempt := Build(p)
	p.Bundle.Status.Unpack.Attempt = LookNumber
	look := Look(p)
	shared, _, _ := sharedPod(t)
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{"a look": {look, true}, "an attempt": {attempt, false}, "attempts": {shared, false}, "neither": {&corev1.Pod{}, false}} {
		if got := IsLook(test.pod); got != test.want {
			t.Errorf("%s: %v for %q", name, got, test.pod.Annotations[v1alpha1.AnnotationAttempt])
		}
	}
}

func TestJudgeLook(t *testing.T) {
	status := func(s corev1.ContainerState, imageID string) corev1.PodStatus {
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: ContainerResolve, State: s, ImageID: imageID}}}
	}
	waits := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	ended := func(code int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}
	}
	for name, test := range map[string]struct {
		status  corev1.PodStatus
		found   string
		state   State
		reason  string
		failing bool
	}{
		"nothing yet":           {state: Waiting},
		"unschedulable":         {status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse}}}, state: Waiting, reason: v1alpha1.ReasonUnschedulable},
		"pulling":               {status: status(waits("ContainerCreating", ""), ""), state: Waiting},
		"no such image":         {status: status(waits("ErrImagePull", "v1: not found"), ""), state: Waiting, reason: v1alpha1.ReasonImageNotFound, failing: true},
		"no name":               {status: status(waits("InvalidImageName", ""), ""), state: Failed, reason: v1alpha1.ReasonInvalidImageReference},
		"running":               {status: status(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, ""), state: Running},
		"ended":                 {status: status(ended(0), "mirror.example/app@"+testDigest), found: byDigestIn},
		"ended with an error":   {status: status(ended(127), byDigestIn), found: byDigestIn},
		"ended without a word":  {status: status(ended(0), ""), state: Failed, reason: v1alpha1.ReasonDigestUnknown},
		"ended, with a config":  {status: status(ended(0), testDigest), state: Failed, reason: v1alpha1.ReasonDigestUnknown},
		"evicted":               {status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}, state: Failed, reason: v1alpha1.ReasonEvicted},
		"failed without a word": {status: corev1.PodStatus{Phase: corev1.PodFailed}, state: Failed, reason: v1alpha1.ReasonPodFailed},
	} {
		t.Run(name, func(t *testing.T) {
			p := Look(testParams(v1alpha1.UnpackModeImageVolume, byTag, "/"))
			p.Status = test.status
			if got := Looked(p, byTag); got != test.found {
				t.Errorf("found %q, want %q", got, test.found)
			}
			if test.found != "" {
				return
			}
			if o := JudgeLook(p); o.State != test.state || o.Reason != test.reason || o.Failing != test.failing {
				t.Errorf("got %+v", o)
			}
		})
	}
}
