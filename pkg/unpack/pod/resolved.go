// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// byDigest matches a repository and a digest of a manifest. A digest alone, which
// container runtimes give too, is that of the image's configuration and names
// nothing that could be pulled.
var byDigest = regexp.MustCompile(`^[^@\s]+@[a-z0-9]+([.+_-][a-z0-9]+)*:[0-9a-f]{32,}$`)

// ResolvedReference returns the image by digest that an unpack pod takes its files
// from, or nothing when its node did not say. Reference is that of the bundle's spec; when
// it names a digest it is itself the answer.
//
// The node's word is, in this order, the status of the image volume (KEP-5365) and
// the imageID of the container that runs in the bundle's image. Of that only the digest counts: a node
// that has the same image under several names, of several tenants, may tell any of them.
func ResolvedReference(pod *corev1.Pod, reference string) string {
	if v1alpha1.Digested(reference) {
		return reference
	}
	if taken := sourceImage(pod); v1alpha1.Digested(taken) {
		return taken
	}
	if s := statusOf(pod.Status.ContainerStatuses, ContainerUnpack); s != nil {
		for _, m := range s.VolumeMounts {
			if m.Name == volumeContent && m.VolumeStatus != nil && m.VolumeStatus.Image != nil {
				if resolved := within(reference, m.VolumeStatus.Image.ImageRef); resolved != "" {
					return resolved
				}
			}
		}
	}
	name := ContainerResolve
	if contentVolume(pod) == nil {
		name = ContainerUnpack
	}
	if s := statusOf(pod.Status.ContainerStatuses, name); s != nil {
		return within(reference, s.ImageID)
	}
	return ""
}

// within returns the image with the digest of an image ID in the repository of a reference, which names no digest
// itself. It is empty when the image ID has no digest that could be pulled.
func within(reference, imageID string) string {
	_, digest, found := strings.Cut(clean(imageID), "@")
	if !found {
		return ""
	}
	// The tag comes after the last slash; a colon before that is of a port.
	slash := strings.LastIndexByte(reference, '/') + 1
	name, _, _ := strings.Cut(reference[slash:], ":")
	return reference[:slash] + name + "@" + digest
}

func contentVolume(pod *corev1.Pod) *corev1.ImageVolumeSource {
	for _, v := range pod.Spec.Volumes {
		if v.Name == volumeContent {
			return v.Image
		}
	}
	return nil
}

// sourceImage is the image that a pod takes its files from, as its spec has it: a
// digest where the attempt repeats an earlier one whose tag was looked up.
func sourceImage(pod *corev1.Pod) string {
	if v := contentVolume(pod); v != nil {
		return v.Reference
	}
	for _, c := range pod.Spec.Containers {
		if c.Name == ContainerUnpack {
			return c.Image
		}
	}
	return ""
}

// clean returns an image ID in the form that can be pulled, or nothing.
func clean(imageID string) string {
	if _, rest, found := strings.Cut(imageID, "://"); found {
		imageID = rest
	}
	if byDigest.MatchString(imageID) {
		return imageID
	}
	return ""
}
