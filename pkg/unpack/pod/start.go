// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// artifactSigns are what container runtimes say of OCI artifacts that are no images of files:
// their configuration does not list their layers, or they cannot be unpacked at all.
var artifactSigns = []string{
	"mismatched image rootfs and manifest layers", "unsupported image-specific operation on artifact",
}

// unsupportedSigns are what container runtimes without image volumes say when they get a mount
// that has an image in place of a folder of the node.
var unsupportedSigns = []string{
	`failed to mkdir "": mkdir : no such file or directory`, "mount.hostpath is empty",
}

// judgeStart finds the reason that a container could not be started in what the node says.
func judgeStart(name, message string) (reason, text string) {
	lower := strings.ToLower(message)
	switch {
	case containsAny(lower, artifactSigns):
		return v1alpha1.ReasonArtifactNotSupported, Words("this is no image of files, and the node cannot mount it", message)
	case containsAny(lower, unsupportedSigns):
		return v1alpha1.ReasonImageVolumeUnsupported, Words("the container runtime of the node has no image volumes", message)
	case strings.Contains(lower, "imagevolume"), strings.Contains(lower, "image volume"):
		return v1alpha1.ReasonContainerFailed, Words("the node cannot mount the image as a volume", message)
	}
	return v1alpha1.ReasonContainerFailed, Words(fmt.Sprintf("container %s could not be started", name), message)
}

func containsAny(text string, signs []string) bool {
	for _, sign := range signs {
		if strings.Contains(text, sign) {
			return true
		}
	}
	return false
}

// noMemoryToStart tells whether a container was killed for memory before it ran its program, as
// runc says it.
func noMemoryToStart(message string) bool { return strings.Contains(message, "OOM-killed") }

func outOfMemory(name string) Outcome {
	return failed(v1alpha1.ReasonOutOfMemory, fmt.Sprintf("container %s needs more memory than unpack.podTemplate.resources of the class allows", name), "")
}

// JudgeEvent finds out what a warning of the node means for a pod that it does not start. Memory that is not
// enough for a sandbox is never enough later.
func JudgeEvent(warning string) Outcome {
	switch {
	case noMemoryToStart(warning):
		return outOfMemory(ContainerUnpack)
	case throttled.MatchString(warning):
		return Outcome{State: Waiting, Reason: v1alpha1.ReasonImagePullThrottled, Message: "the node pulls no more images for the moment"}
	case strings.Contains(warning, "Failed to pull image"):
		// The event may be there long before the status of the pod.
		reason, text := judgePull(warning)
		return Outcome{State: Waiting, Reason: reason, Message: text}
	}
	return Outcome{State: Waiting, Reason: v1alpha1.ReasonContainerFailed, Message: Words("the node does not start the pod: "+warning, "")}
}

// HasImage tells whether a pod of mode ImageVolume was stored with its image, or its images. A cluster that does not
// know image volumes takes the pod and drops the field, so that the volume would be an empty folder.
func HasImage(pod *corev1.Pod) bool {
	found := false
	for _, v := range pod.Spec.Volumes {
		if v.Name == volumeContent || strings.HasPrefix(v.Name, volumeContent+"-") {
			if v.Image == nil {
				return false
			}
			found = true
		}
	}
	return found
}

// Stage says in words how far a pod has got that has nothing to say itself.
func Stage(pod *corev1.Pod) string {
	main := statusOf(pod.Status.ContainerStatuses, ContainerUnpack)
	switch {
	case pod.Spec.NodeName == "":
		return "the pod had no node yet"
	case main != nil && main.State.Running != nil:
		return "the pod was reading and sending the files"
	case main != nil && main.State.Terminated != nil:
		return "the pod had ended"
	}
	return "the node was pulling the image or preparing the pod"
}

// Images is how many images of bundles the node of a pod pulls.
func Images(pod *corev1.Pod) int {
	volumes := 0
	for _, v := range pod.Spec.Volumes {
		if v.Image != nil {
			volumes++
		}
	}
	return max(volumes, 1) // else it is that of a container
}
