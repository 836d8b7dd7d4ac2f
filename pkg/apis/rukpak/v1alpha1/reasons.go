// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Reasons of the conditions of a Bundle, of status.unpack.reason and of events. They are
// stable: programs may decide by them, and docs/reasons.md says of each what it means and
// what helps. Messages are for people and may change. Controllers of other provisioners
// give reasons of their own.
const (
	// ReasonUnpacked means that the content of the current generation is there.
	ReasonUnpacked = "Unpacked"
	// ReasonAvailable means that content is served.
	ReasonAvailable = "Available"
	// ReasonRefreshed means that it is known what the reference of the source names, and that
	// that is unpacked.
	ReasonRefreshed = "Refreshed"
	// ReasonProgressing means that nothing keeps attempts from being made.
	ReasonProgressing = "Progressing"
	// ReasonRoom means that there is room in the content store again.
	ReasonRoom = "Room"
)

// Reasons that something is waited for.
const (
	// ReasonPending means that no attempt has been made for this generation.
	ReasonPending = "Pending"
	// ReasonQueued means that the bundle waits for its turn to be unpacked.
	ReasonQueued = "Queued"
	// ReasonUnpacking means that an attempt is running.
	ReasonUnpacking = "Unpacking"
	// ReasonNoContent means that there is no content yet.
	ReasonNoContent = "NoContent"
	// ReasonClassMissing means that the ProvisionerClass does not exist, or that none is
	// named and there is no default.
	ReasonClassMissing = "ClassMissing"
	// ReasonWaitingForUpload means that a client has yet to write the content.
	ReasonWaitingForUpload = "WaitingForUpload"
	// ReasonWaitingForProvisioner means that the controller of another provisioner has yet to act.
	ReasonWaitingForProvisioner = "WaitingForProvisioner"
	// ReasonSuspended means that spec.suspend is set.
	ReasonSuspended = "Suspended"
	// ReasonStorageFull means that new content waits for room in the content store.
	ReasonStorageFull = "StorageFull"
	// ReasonServerNotReady means that the server does not know its own address yet.
	ReasonServerNotReady = "ServerNotReady"
	// ReasonImagePullThrottled means that the node pulls no more images for the moment. It is
	// no failure.
	ReasonImagePullThrottled = "ImagePullThrottled"
	// ReasonPodCreationFailed means that the cluster did not create the pod, for the
	// time being.
	ReasonPodCreationFailed = "PodCreationFailed"
)

// Reasons that the cluster does not let the unpack pod be, or run.
const (
	// ReasonUnschedulable means that no node takes the pod. The message names the predicates.
	ReasonUnschedulable = "Unschedulable"
	// ReasonQuotaExceeded means that the namespace's quota has no room for the pod.
	ReasonQuotaExceeded = "QuotaExceeded"
	// ReasonPodSecurityViolated means that the Pod Security Standard of the namespace does
	// not allow the pod.
	ReasonPodSecurityViolated = "PodSecurityViolated"
	// ReasonPodRefused means that admission, such as a policy or a webhook, does not let the
	// pod be.
	ReasonPodRefused = "PodRefused"
	// ReasonServiceAccountMissing means that spec.serviceAccountName does not exist.
	ReasonServiceAccountMissing = "ServiceAccountMissing"
	// ReasonNamespaceTerminating means that the namespace is being deleted, and takes no pod.
	ReasonNamespaceTerminating = "NamespaceTerminating"
	// ReasonPodNameTaken means that somebody else's pod has the attempt's name.
	ReasonPodNameTaken = "PodNameTaken"
	// ReasonModeNotAllowed means that the class's mode cannot be had here.
	ReasonModeNotAllowed = "ModeNotAllowed"
	// ReasonPullPolicyNotAllowed means that the class does not allow the bundle's pull
	// policy, or not any more.
	ReasonPullPolicyNotAllowed = "PullPolicyNotAllowed"
	// ReasonPlatformNotAllowed means that the class, or its mode, cannot give the platform
	// that the bundle asks for.
	ReasonPlatformNotAllowed = "PlatformNotAllowed"
	// ReasonPathNotSupported means that the mode cannot read that path of an image.
	ReasonPathNotSupported = "PathNotSupported"
)

// Reasons that an image is not pulled, or cannot be used.
const (
	// ReasonInvalidImageReference means that the node cannot read the image's name.
	ReasonInvalidImageReference = "InvalidImageReference"
	// ReasonImageNotFound means that the registry has no such image.
	ReasonImageNotFound = "ImageNotFound"
	// ReasonImagePullUnauthorized means that the registry wants other credentials.
	ReasonImagePullUnauthorized = "ImagePullUnauthorized"
	// ReasonPullSecretMissing means the same, where a pull secret that is named does not exist.
	ReasonPullSecretMissing = "PullSecretMissing"
	// ReasonRegistryUnreachable means that the registry gave no answer, or one that says
	// that it is out of order.
	ReasonRegistryUnreachable = "RegistryUnreachable"
	// ReasonRegistryNotTrusted means that the registry's certificate is none that whoever
	// pulls trusts, or that it speaks no TLS at all.
	ReasonRegistryNotTrusted = "RegistryNotTrusted"
	// ReasonRateLimited means that the registry answers no more requests for now.
	ReasonRateLimited = "RateLimited"
	// ReasonPlatformNotSupported means that the registry has the image, but not for the
	// platform of the node.
	ReasonPlatformNotSupported = "PlatformNotSupported"
	// ReasonArtifactNotSupported means that the reference names an OCI artifact that is no
	// image of files.
	ReasonArtifactNotSupported = "ArtifactNotSupported"
	// ReasonImageEmpty means that the image was mounted and there is not one file in it.
	ReasonImageEmpty = "ImageEmpty"
	// ReasonImageVolumeUnsupported means that the cluster or the node's container runtime
	// has no image volumes.
	ReasonImageVolumeUnsupported = "ImageVolumeUnsupported"
	// ReasonImagePullFailed means that the image could not be pulled for another reason.
	ReasonImagePullFailed = "ImagePullFailed"
)

// Reasons that an unpack pod that had a node did not do its work.
const (
	// ReasonContainerFailed means that a container could not be started, or ended with an
	// error.
	ReasonContainerFailed = "ContainerFailed"
	// ReasonOutOfMemory means that a container needed more memory than it may have.
	ReasonOutOfMemory = "OutOfMemory"
	// ReasonDeadlineExceeded means that the attempt took longer than its class allows.
	ReasonDeadlineExceeded = "DeadlineExceeded"
	// ReasonEvicted means that the node, or whoever drained it, took the pod away.
	ReasonEvicted = "Evicted"
	// ReasonPreempted means that a pod of higher priority took its place.
	ReasonPreempted = "Preempted"
	// ReasonNodeLost means that the node went away, or was tainted so that the pod had to go.
	ReasonNodeLost = "NodeLost"
	// ReasonPodDeleted means that somebody deleted the pod.
	ReasonPodDeleted = "PodDeleted"
	// ReasonPodFailed means that the node gave the pod up for another reason.
	ReasonPodFailed = "PodFailed"
)

// Reasons that content does not get from the image to the server, or is not taken.
const (
	// ReasonContentUnreadable means that the files could not be read.
	ReasonContentUnreadable = "ContentUnreadable"
	// ReasonContentRefused means that the content may not be what it is.
	ReasonContentRefused = "ContentRefused"
	// ReasonLimitExceeded means that the content is larger than its class allows.
	ReasonLimitExceeded = "LimitExceeded"
	// ReasonContentQuotaExceeded means that the bundles of the namespace have as much
	// content as they may.
	ReasonContentQuotaExceeded = "ContentQuotaExceeded"
	// ReasonServerUnreachable means that the pod got no connection to the server.
	ReasonServerUnreachable = "ServerUnreachable"
	// ReasonUploadFailed means that the server was reached and did not take the content.
	ReasonUploadFailed = "UploadFailed"
	// ReasonContentNotCommitted means that the program ended well and the server has
	// no content from it.
	ReasonContentNotCommitted = "ContentNotCommitted"
	// ReasonContentLost means that the stored bytes are gone.
	ReasonContentLost = "ContentLost"
	// ReasonDigestUnknown means that the node does not say by digest which image it took.
	ReasonDigestUnknown = "DigestUnknown"
	// ReasonInvalidConfiguration means that the pod was not made as its program expects.
	ReasonInvalidConfiguration = "InvalidConfiguration"
	// ReasonInternalError means that this server is at fault.
	ReasonInternalError = "InternalError"
)
