// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/contract"
)

// LookNumber takes the place of an attempt's number in the proof of a pod that only looks
// an image up. Attempts count from 1.
const LookNumber = 0

// Look makes a pod that finds out what a reference names now and does nothing else: the server's
// own program runs in the image and ends at once, so that the node tells the image's digest. What the node has it does not
// fetch again; what is new it needs anyway. The nonce and the mode of the look are those in status.unpack of the
// bundle in p, of which only the proof and the name of the pod are made.
//
// The pod satisfies what Build promises. It has no token, so that it can write nothing.
func Look(p Params) *corev1.Pod {
	b := newBuilder(p)
	pod := &corev1.Pod{ObjectMeta: b.metadata(), Spec: b.spec()}
	// Only the registry knows what there is now.
	policy := corev1.PullAlways
	if p.Bundle.Spec.Source.Image.PullPolicy == corev1.PullNever {
		policy = corev1.PullNever
	}
	program, volume := b.folder+contract.Program, b.programImage()
	if b.attempt.Mode == v1alpha1.UnpackModeImageCopy {
		program, volume = b.program(), programVolume()
		pod.Spec.InitContainers = []corev1.Container{b.install()}
	}
	resolve := b.container(ContainerResolve, b.Reference, policy, program, contract.CommandExit)
	resolve.VolumeMounts = []corev1.VolumeMount{b.programMount(true)}
	pod.Spec.Containers = []corev1.Container{resolve}
	pod.Spec.Volumes = []corev1.Volume{volume}
	return pod
}

// IsLook tells whether a pod says that it looks an image up. It takes the word of the pod for it: what is to
// rest on that takes the key, and Made.
func IsLook(pod *corev1.Pod) bool {
	_, rest, _ := strings.Cut(pod.Annotations[v1alpha1.AnnotationAttempt], ".")
	number, _, _ := strings.Cut(rest, ".")
	return number == strconv.Itoa(LookNumber)
}

// Looked returns the image by digest that a pod made by Look has found for a reference, or nothing while its
// node has not said so.
func Looked(pod *corev1.Pod, reference string) string {
	if s := statusOf(pod.Status.ContainerStatuses, ContainerResolve); s != nil {
		return within(reference, s.ImageID)
	}
	return ""
}

// JudgeLook reads a pod that Look made, and that has not found anything yet.
func JudgeLook(pod *corev1.Pod) Outcome {
	return judgeBy(pod, statusOf(pod.Status.ContainerStatuses, ContainerResolve), func(s *corev1.ContainerStatus) (Outcome, bool) {
		if s.State.Terminated != nil {
			// How it ended does not matter: the image was there, and the node does not say which it was.
			return failed(v1alpha1.ReasonDigestUnknown, fmt.Sprintf("the node does not say by digest which image container %s ran", s.Name), ""), true
		}
		return judgeContainer(s)
	})
}
