// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

// refused is what it means that the cluster does not let a pod be created, nil when it only could not do it now.
func refused(err error, mode v1alpha1.UnpackMode) *verdict {
	reason, ok := refusal(err, mode)
	if !ok {
		return nil
	}
	what := "the cluster refuses the pod"
	if demandsResources(err) {
		what = "a ResourceQuota wants the pod to say what it takes: set it in unpack.podTemplate.resources of the class, or give the namespace a LimitRange with defaults"
	}
	return &verdict{reason: reason, message: pod.Words(what, err.Error())}
}

// demandsResources tells whether a ResourceQuota refuses a pod that does not say how much it takes of what is counted, as in
// "failed quota: compute: must specify limits.cpu for: unpack". There may be room.
func demandsResources(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "failed quota")
}

// accountMissing is what it means that the service account of a pod does not exist.
func accountMissing(err error) verdict {
	return verdict{reason: v1alpha1.ReasonServiceAccountMissing, message: pod.Words("the cluster has no such service account", err.Error())}
}

// refusal finds out why the cluster does not let a pod be created. It returns false
// when it does not say so, but only could not do it now.
//
// Which admission plugin refused stands nowhere but in the message: all of them
// answer 403 or 422.
func refusal(err error, mode v1alpha1.UnpackMode) (reason string, ok bool) {
	message := err.Error()
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return v1alpha1.ReasonNamespaceTerminating, true
	case apierrors.IsForbidden(err):
		switch {
		case strings.Contains(message, "exceeded quota"):
			return v1alpha1.ReasonQuotaExceeded, true
		case strings.Contains(message, "error looking up service account"), strings.Contains(message, "serviceaccount") && strings.Contains(message, "not found"):
			return v1alpha1.ReasonServiceAccountMissing, true
		case strings.Contains(message, "violates PodSecurity"):
			return v1alpha1.ReasonPodSecurityViolated, true
		}
		return v1alpha1.ReasonPodRefused, true
	case apierrors.IsInvalid(err):
		// A cluster that has switched image volumes off drops the field, and finds a volume of nothing.
		if mode == v1alpha1.UnpackModeImageVolume && aboutVolumes(err) {
			return v1alpha1.ReasonImageVolumeUnsupported, true
		}
		return v1alpha1.ReasonPodRefused, true
	case apierrors.IsBadRequest(err), apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err), apierrors.IsRequestEntityTooLargeError(err):
		return v1alpha1.ReasonPodRefused, true
	}
	return "", false
}

// aboutVolumes tells whether the API finds fault with a volume. It goes by the fields that are named, since
// the message of a policy may say anything.
func aboutVolumes(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || status.ErrStatus.Details == nil {
		return false
	}
	return slices.ContainsFunc(status.ErrStatus.Details.Causes, func(c metav1.StatusCause) bool {
		return strings.HasPrefix(c.Field, "spec.volumes[")
	})
}
