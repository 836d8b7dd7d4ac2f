// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/contract"
)

// Reasons why an unpack pod waits or has failed, beside those of package contract. Package
// v1alpha1 says what they mean.
const (
	ReasonUnschedulable          = v1alpha1.ReasonUnschedulable
	ReasonInvalidImageReference  = v1alpha1.ReasonInvalidImageReference
	ReasonImageNotFound          = v1alpha1.ReasonImageNotFound
	ReasonImagePullUnauthorized  = v1alpha1.ReasonImagePullUnauthorized
	ReasonPullSecretMissing      = v1alpha1.ReasonPullSecretMissing
	ReasonRegistryUnreachable    = v1alpha1.ReasonRegistryUnreachable
	ReasonRegistryNotTrusted     = v1alpha1.ReasonRegistryNotTrusted
	ReasonRateLimited            = v1alpha1.ReasonRateLimited
	ReasonPlatformNotSupported   = v1alpha1.ReasonPlatformNotSupported
	ReasonArtifactNotSupported   = v1alpha1.ReasonArtifactNotSupported
	ReasonImagePullFailed        = v1alpha1.ReasonImagePullFailed
	ReasonImageVolumeUnsupported = v1alpha1.ReasonImageVolumeUnsupported
	ReasonContainerFailed        = v1alpha1.ReasonContainerFailed
	ReasonOutOfMemory            = v1alpha1.ReasonOutOfMemory
	ReasonEvicted                = v1alpha1.ReasonEvicted
	ReasonPreempted              = v1alpha1.ReasonPreempted
	ReasonNodeLost               = v1alpha1.ReasonNodeLost
	ReasonDeadlineExceeded       = v1alpha1.ReasonDeadlineExceeded
	ReasonPodDeleted             = v1alpha1.ReasonPodDeleted
	ReasonPodFailed              = v1alpha1.ReasonPodFailed
	ReasonImagePullThrottled     = v1alpha1.ReasonImagePullThrottled
	ReasonDigestUnknown          = v1alpha1.ReasonDigestUnknown
)

// Final tells whether a failure stays as long as nobody changes the bundle, its
// class or the image, so that trying again is in vain.
func Final(reason string) bool {
	switch reason {
	case ReasonInvalidImageReference, ReasonArtifactNotSupported, contract.ReasonImageEmpty,
		contract.ReasonContentRefused, contract.ReasonLimitExceeded, v1alpha1.ReasonNamespaceTerminating:
		return true
	}
	return false
}
