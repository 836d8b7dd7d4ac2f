// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

// Reasons in status, conditions and events, beside those of package pod, package
// contract and package conditions.
const (
	// ReasonModeNotAllowed means that the class's mode cannot be had here.
	ReasonModeNotAllowed = "ModeNotAllowed"
	// ReasonPullPolicyNotAllowed means that the class does not allow the bundle's pull
	// policy, or not any more.
	ReasonPullPolicyNotAllowed = "PullPolicyNotAllowed"
	// ReasonPathNotSupported means that the mode cannot read that path of an image.
	ReasonPathNotSupported = "PathNotSupported"
	// ReasonPlatformNotAllowed means that the class, or its mode, cannot give the platform
	// that the bundle asks for.
	ReasonPlatformNotAllowed = "PlatformNotAllowed"
	// ReasonServerNotReady means that the server does not know its own address yet.
	ReasonServerNotReady = "ServerNotReady"
	// ReasonPodCreationFailed means that the cluster did not create the pod, for the
	// time being.
	ReasonPodCreationFailed = "PodCreationFailed"
	// ReasonQuotaExceeded means that the namespace's quota has no room for the pod.
	ReasonQuotaExceeded = "QuotaExceeded"
	// ReasonServiceAccountMissing means that spec.serviceAccountName does not exist.
	ReasonServiceAccountMissing = "ServiceAccountMissing"
	// ReasonPodRefused means that the cluster's rules, such as pod security or an
	// admission policy, do not let the pod be.
	ReasonPodRefused = "PodRefused"
	// ReasonPodNameTaken means that somebody else's pod has the attempt's name.
	ReasonPodNameTaken = "PodNameTaken"
	// ReasonContentNotCommitted means that the program ended well and the server has
	// no content from it.
	ReasonContentNotCommitted = "ContentNotCommitted"
	// ReasonInternalError means that this server is at fault.
	ReasonInternalError = "InternalError"
)
