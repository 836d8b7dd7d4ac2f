// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import "rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"

// Reasons that are found here, beside those of package pod, package contract and package
// conditions. Package v1alpha1 says what they mean.
const (
	ReasonModeNotAllowed        = v1alpha1.ReasonModeNotAllowed
	ReasonPullPolicyNotAllowed  = v1alpha1.ReasonPullPolicyNotAllowed
	ReasonPathNotSupported      = v1alpha1.ReasonPathNotSupported
	ReasonPlatformNotAllowed    = v1alpha1.ReasonPlatformNotAllowed
	ReasonServerNotReady        = v1alpha1.ReasonServerNotReady
	ReasonPodCreationFailed     = v1alpha1.ReasonPodCreationFailed
	ReasonQuotaExceeded         = v1alpha1.ReasonQuotaExceeded
	ReasonServiceAccountMissing = v1alpha1.ReasonServiceAccountMissing
	ReasonPodSecurityViolated   = v1alpha1.ReasonPodSecurityViolated
	ReasonPodRefused            = v1alpha1.ReasonPodRefused
	ReasonNamespaceTerminating  = v1alpha1.ReasonNamespaceTerminating
	ReasonPodNameTaken          = v1alpha1.ReasonPodNameTaken
	ReasonContentNotCommitted   = v1alpha1.ReasonContentNotCommitted
	ReasonInternalError         = v1alpha1.ReasonInternalError
)
