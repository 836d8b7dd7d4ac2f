// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

// refusal finds out why the cluster does not let a pod be created. It returns false
// when it does not say so, but only could not do it now.
//
// Which admission plugin refused stands nowhere but in the message: all of them
// answer 403 or 422.
func refusal(err error, mode v1alpha1.UnpackMode) (reason string, ok bool) {
	message := err.Error()
	switch {
	case apierrors.IsForbidden(err):
		switch {
		case strings.Contains(message, "exceeded quota"), strings.Contains(message, "failed quota"):
			return ReasonQuotaExceeded, true
		case strings.Contains(message, "error looking up service account"), strings.Contains(message, "serviceaccount") && strings.Contains(message, "not found"):
			return ReasonServiceAccountMissing, true
		}
		return ReasonPodRefused, true
	case apierrors.IsInvalid(err):
		// A cluster without image volumes drops the field, and finds an empty volume.
		if mode == v1alpha1.UnpackModeImageVolume && strings.Contains(message, "spec.volumes") {
			return pod.ReasonImageVolumeUnsupported, true
		}
		return ReasonPodRefused, true
	case apierrors.IsBadRequest(err), apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err), apierrors.IsRequestEntityTooLargeError(err):
		return ReasonPodRefused, true
	}
	return "", false
}
