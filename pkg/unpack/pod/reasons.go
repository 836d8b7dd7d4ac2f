// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import "rukpak.io/apiserver/pkg/unpack/contract"

// Reasons why an unpack pod waits or has failed, beside those of package contract.
const (
	// ReasonUnschedulable means that no node takes the pod.
	ReasonUnschedulable = "Unschedulable"
	// ReasonInvalidImageReference means that the node cannot read the image's name.
	ReasonInvalidImageReference = "InvalidImageReference"
	// ReasonImageNotFound means that the registry has no such image.
	ReasonImageNotFound = "ImageNotFound"
	// ReasonImagePullUnauthorized means that the registry wants other credentials.
	ReasonImagePullUnauthorized = "ImagePullUnauthorized"
	// ReasonPullSecretMissing means the same, where a pull secret that is named does not exist.
	ReasonPullSecretMissing = "PullSecretMissing"
	// ReasonRegistryUnreachable means that the node got no answer from the registry.
	ReasonRegistryUnreachable = "RegistryUnreachable"
	// ReasonImagePullFailed means that the image could not be pulled for another reason.
	ReasonImagePullFailed = "ImagePullFailed"
	// ReasonImagePullThrottled means that the node pulls no more images for the moment. It is no failure.
	ReasonImagePullThrottled = "ImagePullThrottled"
	// ReasonPlatformNotSupported means that the registry has the image, but not for the
	// platform of the node.
	ReasonPlatformNotSupported = "PlatformNotSupported"
	// ReasonImageVolumeUnsupported means that the image cannot be mounted as a volume: the
	// cluster has no image volumes, or it is no image of files.
	ReasonImageVolumeUnsupported = "ImageVolumeUnsupported"
	// ReasonContainerFailed means that a container could not be started, or ended with an error.
	ReasonContainerFailed = "ContainerFailed"
	// ReasonOutOfMemory means that a container needed more memory than it may have.
	ReasonOutOfMemory = "OutOfMemory"
	// ReasonEvicted means that the node or its administrator took the pod away.
	ReasonEvicted = "Evicted"
	// ReasonDeadlineExceeded means that the attempt took longer than its class allows.
	ReasonDeadlineExceeded = "DeadlineExceeded"
	// ReasonPodDeleted means that somebody deleted the pod.
	ReasonPodDeleted = "PodDeleted"
	// ReasonDigestUnknown means that the node does not say by digest which image it took.
	ReasonDigestUnknown = "DigestUnknown"
	// ReasonPodFailed means that the node gave the pod up for another reason.
	ReasonPodFailed = "PodFailed"
)

// Final tells whether a failure stays as long as nobody changes the bundle, its
// class or the image, so that trying again is in vain.
func Final(reason string) bool {
	switch reason {
	case ReasonInvalidImageReference, contract.ReasonContentRefused, contract.ReasonLimitExceeded:
		return true
	}
	return false
}
