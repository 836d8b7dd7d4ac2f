// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/contract"
)

// Final tells whether a failure stays as long as nobody changes the bundle, its
// class or the image, so that trying again is in vain.
func Final(reason string) bool {
	switch reason {
	case v1alpha1.ReasonInvalidImageReference, v1alpha1.ReasonArtifactNotSupported, contract.ReasonImageEmpty,
		contract.ReasonContentRefused, contract.ReasonLimitExceeded, v1alpha1.ReasonNamespaceTerminating:
		return true
	}
	return false
}
