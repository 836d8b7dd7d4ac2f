// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Provisioners that this server implements itself. Any other name in a
// ProvisionerClass belongs to a controller of somebody else.
const (
	// ProvisionerRaw takes any content, without a look inside.
	ProvisionerRaw = "rukpak.io/raw"
	// ProvisionerPlain takes content with at least one valid Kubernetes manifest
	// under manifests/, and none that is not valid.
	ProvisionerPlain = "rukpak.io/plain"
)

// MaxRequestBytes bounds the values of AnnotationRetry and AnnotationRefresh, which status echoes, in bytes.
const MaxRequestBytes = 256

// Annotations and labels with a meaning to this API.
const (
	// AnnotationIsDefaultClass marks the class that a Bundle without a class name gets.
	AnnotationIsDefaultClass = "rukpak.io/is-default-class"
	// AnnotationRetry on a Bundle asks, each time its value changes, to try at once what has
	// failed; status.lastHandledRetry echoes the value that was acted upon. It has at most MaxRequestBytes.
	AnnotationRetry = "rukpak.io/retry"
	// AnnotationRefresh on a Bundle asks, each time its value changes, to look up what the
	// reference of its source names now, and to unpack that if it is another image;
	// status.lastHandledRefresh echoes the value that was acted upon. It has at most MaxRequestBytes.
	AnnotationRefresh = "rukpak.io/refresh"
	// LabelBundleUID on an unpack pod holds the UID of its Bundle.
	LabelBundleUID = "rukpak.io/bundle-uid"
	// AnnotationTraceParent on a Bundle is the span, as W3C Trace Context writes it, of the request that made its
	// spec what it is. The server sets it, where that request is traced, and takes no value of anybody else.
	AnnotationTraceParent = "rukpak.io/traceparent"
	// AnnotationAttempt on an unpack pod holds the proof that the server made it: a
	// keyed hash over the attempt that the pod serves.
	AnnotationAttempt = "rukpak.io/attempt"
)

// TokenAudience is the audience of the tokens with which unpack pods, and whoever
// talks to the server's own Service, authenticate.
const TokenAudience = "rukpak.io"

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ProvisionerClass says who handles the bundles that name it, where their content
// is stored, how their unpack pods run, and how large they may be.
type ProvisionerClass struct {
	// +k8s:opaqueType
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata. The annotation rukpak.io/is-default-class: "true"
	// makes the class that of bundles that name none; of several the newest wins.
	// +optional
	// +k8s:opaqueType
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// provisioner names who handles bundles of this class, as a domain-prefixed
	// path. rukpak.io/raw and rukpak.io/plain are built in; bundles of any other
	// provisioner are left to the controller that goes by that name. Immutable.
	// +required
	// +k8s:required
	// +k8s:immutable
	Provisioner string `json:"provisioner"`

	// parameters are strings for the provisioner. Built-in provisioners refuse keys
	// that they do not know.
	// +optional
	Parameters map[string]string `json:"parameters,omitempty"`

	// store names the configured content store that holds the bytes. Defaults to
	// "default". Immutable.
	// +optional
	// +k8s:immutable
	// +k8s:optional
	Store string `json:"store,omitempty"`

	// unpack says how content is got out of images.
	// +optional
	// +k8s:optional
	Unpack *UnpackPolicy `json:"unpack,omitempty"`

	// limits bound what one bundle of this class may be.
	// +optional
	Limits *ContentLimits `json:"limits,omitempty"`

	// revisionHistoryLimit is how many earlier contents of a bundle are kept and
	// served by digest. From 0 to 100, 2 by default.
	// +optional
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ProvisionerClassList is a list of classes.
type ProvisionerClassList struct {
	// +k8s:opaqueType
	metav1.TypeMeta `json:",inline"`
	// +optional
	// +k8s:opaqueType
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the classes.
	Items []ProvisionerClass `json:"items"`
}

// UnpackMode is a way to get the files out of an image.
// +enum
// +k8s:enum
type UnpackMode string

const (
	// UnpackModeAuto uses ImageVolume where the cluster has image volumes and
	// ImageCopy elsewhere; Direct where there is no cluster.
	UnpackModeAuto UnpackMode = "Auto"
	// UnpackModeImageVolume mounts the image read-only into a pod (KEP-4639).
	UnpackModeImageVolume UnpackMode = "ImageVolume"
	// UnpackModeImageCopy runs the server's own static program inside the image. It
	// needs an image path other than "/".
	UnpackModeImageCopy UnpackMode = "ImageCopy"
	// UnpackModeDirect lets the server pull the image itself, with no credentials but those
	// that the server's own configuration holds. It is refused unless the server allows it.
	UnpackModeDirect UnpackMode = "Direct"
)

// UnpackPolicy says how content is got out of images.
type UnpackPolicy struct {
	// mode is Auto, ImageVolume, ImageCopy or Direct. Defaults to Auto.
	// +optional
	// +k8s:optional
	Mode UnpackMode `json:"mode,omitempty"`

	// timeoutSeconds bounds one attempt, from the creation of its pod to the commit
	// of its content. From 1 to 86400, 600 by default.
	// +optional
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`

	// backoffLimit is how many attempts may fail, each later than the one before,
	// until the bundle counts as failing; attempts go on at a slow interval then.
	// From 0 to 100, 6 by default.
	// +optional
	BackoffLimit *int32 `json:"backoffLimit,omitempty"`

	// allowedPullPolicies are the pull policies that a bundle may ask for. Only
	// Always makes the node check the bundle's own credentials for an image that
	// somebody else's pod has left there, so only Always is allowed by default.
	// +optional
	// +listType=set
	AllowedPullPolicies []corev1.PullPolicy `json:"allowedPullPolicies,omitempty"`

	// podTemplate is merged into the unpack pods.
	// +optional
	PodTemplate *UnpackPodTemplate `json:"podTemplate,omitempty"`
}

// UnpackPodTemplate is what a class may choose about unpack pods. Everything else
// about them is fixed, so that they pass the restricted Pod Security Standard.
type UnpackPodTemplate struct {
	// labels are added to the pod. The prefix rukpak.io/ is refused.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// annotations are added to the pod. The prefix rukpak.io/ is refused.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
	// imagePullSecrets name secrets of the bundle's namespace, used before those of the
	// bundle; one that does not exist is passed over by the kubelet.
	// +optional
	// +listType=map
	// +listMapKey=name
	ImagePullSecrets []LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// nodeSelector chooses nodes, beside kubernetes.io/os: linux. With kubernetes.io/arch it
	// chooses the platform of the images, too, for bundles that name none; one that
	// names another is refused.
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// tolerations of the pod.
	// +optional
	// +listType=atomic
	Tolerations []Toleration `json:"tolerations,omitempty"`
	// priorityClassName of the pod.
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// runtimeClassName of the pod.
	// +optional
	RuntimeClassName *string `json:"runtimeClassName,omitempty"`
	// resources of the container that reads the files.
	// +optional
	Resources *ResourceRequirements `json:"resources,omitempty"`
	// runAsUser is the user ID that reads the files, for images with private ones.
	// Not 0. Defaults to 65532.
	// +optional
	RunAsUser *int64 `json:"runAsUser,omitempty"`
	// userFrom says who chooses the user ID: Class, by runAsUser, or Cluster. The pod names
	// none then, as clusters want it whose admission gives each namespace user IDs of its
	// own. Where nobody names one, the user is that of the image that a container runs in, and not root.
	// Defaults to Class.
	// +optional
	UserFrom UserSource `json:"userFrom,omitempty"`
}

// UserSource says who chooses the user ID of unpack pods.
// +enum
type UserSource string

const (
	// UserFromClass takes runAsUser of the class, or its default.
	UserFromClass UserSource = "Class"
	// UserFromCluster leaves the user ID to the cluster's admission.
	UserFromCluster UserSource = "Cluster"
)

// LocalObjectReference names an object in the namespace of the one that refers to it.
type LocalObjectReference struct {
	// name of the object.
	// +required
	Name string `json:"name"`
}

// Toleration has the fields and the meaning of a pod's toleration.
type Toleration struct {
	// +optional
	Key string `json:"key,omitempty"`
	// +optional
	Operator corev1.TolerationOperator `json:"operator,omitempty"`
	// +optional
	Value string `json:"value,omitempty"`
	// +optional
	Effect corev1.TaintEffect `json:"effect,omitempty"`
	// +optional
	TolerationSeconds *int64 `json:"tolerationSeconds,omitempty"`
}

// ResourceRequirements has the meaning of a container's resources.
type ResourceRequirements struct {
	// +optional
	Limits map[corev1.ResourceName]resource.Quantity `json:"limits,omitempty"`
	// +optional
	Requests map[corev1.ResourceName]resource.Quantity `json:"requests,omitempty"`
}

// ContentLimits bound what one bundle may be. Each is above 0.
type ContentLimits struct {
	// compressedBytes bounds the archive as it is stored and served. 512Mi by default.
	// +optional
	CompressedBytes *resource.Quantity `json:"compressedBytes,omitempty"`
	// bytes bounds the uncompressed archive. 2Gi by default.
	// +optional
	Bytes *resource.Quantity `json:"bytes,omitempty"`
	// files bounds the number of entries that are not directories. 100000 by default.
	// +optional
	Files *int64 `json:"files,omitempty"`
}

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:supportsSubresource="/status"
// +k8s:supportsSubresource="/content"

// Bundle names content that lives outside the cluster. Its content is read from the
// subresource "content" once the condition ContentAvailable is True.
type Bundle struct {
	// +k8s:opaqueType
	metav1.TypeMeta `json:",inline"`
	// +optional
	// +k8s:opaqueType
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says which content is wanted.
	// +required
	Spec BundleSpec `json:"spec"`

	// status says what there is.
	// +optional
	Status BundleStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BundleList is a list of bundles.
type BundleList struct {
	// +k8s:opaqueType
	metav1.TypeMeta `json:",inline"`
	// +optional
	// +k8s:opaqueType
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the bundles.
	Items []Bundle `json:"items"`
}

// BundleSpec says which content is wanted.
type BundleSpec struct {
	// provisionerClassName names the ProvisionerClass. Where it is empty the default
	// class is filled in, at creation or as soon as there is one. Set once.
	// +optional
	ProvisionerClassName string `json:"provisionerClassName,omitempty"`

	// source says where the content comes from.
	// +required
	Source BundleSource `json:"source"`

	// serviceAccountName is the service account that the unpack pod runs as, so that
	// its pull secrets apply. Its token is not given to the pod. Who creates the bundle needs
	// "use" on it, or "create pods" in the namespace. Empty means "default".
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// imagePullSecrets name secrets with which the image is pulled, beside those of
	// the service account, 16 at most. Who creates the bundle needs "get" on them, or
	// "create pods" in the namespace.
	// +optional
	// +listType=map
	// +listMapKey=name
	ImagePullSecrets []LocalObjectReference `json:"imagePullSecrets,omitempty"`

	// suspend stops new attempts, and looking for what a reference names now. Content that is
	// there goes on being served.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// refreshIntervalSeconds is how often it is looked up what the reference of an image names
	// now, give or take a tenth; another image is unpacked. From 30 to 2592000 (30 days). Unset, nobody looks.
	// A reference by digest always names the same, so there it has no effect.
	// +optional
	RefreshIntervalSeconds *int32 `json:"refreshIntervalSeconds,omitempty"`
}

// SourceType says which member of a BundleSource is set.
// +enum
// +k8s:enum
type SourceType string

const (
	// SourceTypeImage takes the content out of a container image.
	SourceTypeImage SourceType = "Image"
	// SourceTypeUpload takes the content that a client writes to the subresource "content".
	SourceTypeUpload SourceType = "Upload"
)

// BundleSource says where content comes from: exactly the member that type names is set.
type BundleSource struct {
	// type is Image or Upload.
	// +required
	// +k8s:required
	// +k8s:unionDiscriminator
	// +unionDiscriminator
	Type SourceType `json:"type"`

	// image is a container image whose files are the content.
	// +optional
	// +k8s:optional
	// +k8s:unionMember
	Image *ImageSource `json:"image,omitempty"`

	// upload is content that a client writes.
	// +optional
	// +k8s:optional
	// +k8s:unionMember
	Upload *UploadSource `json:"upload,omitempty"`
}

// ImageSource is a container image whose files are the content.
type ImageSource struct {
	// reference is the image as the node's container runtime understands it,
	// registry/repository:tag or registry/repository@sha256:digest. A digest says
	// which content is meant; what a tag names is looked up and pinned in the status.
	// +required
	// +k8s:required
	// +k8s:maxLength=1024
	Reference string `json:"reference"`

	// pullPolicy is Always unless the class allows another. Defaults to Always.
	// +optional
	PullPolicy corev1.PullPolicy `json:"pullPolicy,omitempty"`

	// path is the absolute path inside the image whose files are the content.
	// Defaults to "/".
	// +optional
	Path string `json:"path,omitempty"`

	// platform is that of the image which is taken where the reference has one for each of
	// several: linux/ARCHITECTURE, or in mode Direct linux/ARCHITECTURE/VARIANT. The unpack pod runs on
	// a node of that architecture, for a node takes the image of its own. Empty means that of the
	// content that the bundle has had from the same source, else that of the class's nodeSelector, else
	// the server's default.
	// +optional
	Platform string `json:"platform,omitempty"`
}

// UploadSource is content that a client writes to the subresource "content".
type UploadSource struct {
	// digest, when set, is the only content that is accepted: sha256 of the
	// archive as it will be served, "sha256:" and 64 lower-case hexadecimal digits.
	// +optional
	Digest string `json:"digest,omitempty"`
}

// BundlePhase is a summary of the conditions.
// +enum
type BundlePhase string

const (
	// BundlePending has not been started on.
	BundlePending BundlePhase = "Pending"
	// BundleUnpacking is being worked on.
	BundleUnpacking BundlePhase = "Unpacking"
	// BundleUnpacked is served as the spec asks.
	BundleUnpacked BundlePhase = "Unpacked"
	// BundleFailing has failed its attempts, or cannot succeed as it is.
	BundleFailing BundlePhase = "Failing"
)

// Types of conditions of a Bundle.
const (
	// ConditionUnpacked is True when the content of the current generation is there,
	// Unknown while attempts are made, False when they failed.
	ConditionUnpacked = "Unpacked"
	// ConditionContentAvailable is True when content, of whichever generation, is served.
	ConditionContentAvailable = "ContentAvailable"
	// ConditionReady is True when the content of the current generation is served.
	ConditionReady = "Ready"
	// ConditionStalled is True when nothing will be tried until somebody acts.
	ConditionStalled = "Stalled"
	// ConditionStorageFull is True while new content is not taken because the content store
	// of the class is full. What is there is served. It stands only where that was once so.
	ConditionStorageFull = "StorageFull"
	// ConditionRefreshed is True when the latest look for what a reference names now has ended
	// well, and False when it, or unpacking what it found, has failed: what was found before is served. It stands
	// only where somebody has looked.
	ConditionRefreshed = "Refreshed"
)

// BundleStatus says what there is.
type BundleStatus struct {
	// observedGeneration is the generation of the spec that the conditions are about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// phase is a summary of the conditions.
	// +optional
	Phase BundlePhase `json:"phase,omitempty"`

	// provisioner is that of the class.
	// +optional
	Provisioner string `json:"provisioner,omitempty"`

	// resolvedSource is what the content was taken from. Written by the server alone.
	// +optional
	// +k8s:optional
	ResolvedSource *ResolvedSource `json:"resolvedSource,omitempty"`

	// content is what the subresource "content" serves. Written by the server alone.
	// +optional
	Content *ContentStatus `json:"content,omitempty"`

	// history lists earlier contents that are still served by digest, newest first. Written
	// by the server alone.
	// +optional
	// +listType=map
	// +listMapKey=digest
	History []ContentStatus `json:"history,omitempty"`

	// unpack is the latest attempt to unpack. Written by the server alone.
	// +optional
	// +k8s:optional
	Unpack *UnpackStatus `json:"unpack,omitempty"`

	// refresh tells of looking up what the source's reference names now. Written by the server alone.
	// +optional
	Refresh *RefreshStatus `json:"refresh,omitempty"`

	// conditions are Unpacked, ContentAvailable, Ready and Stalled, and where there is something to
	// say StorageFull and Refreshed. Unless the provisioner is another controller's they are written by the server alone.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +patchStrategy=merge
	// +patchMergeKey=type
	// +k8s:eachVal=+k8s:opaqueType
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`

	// lastHandledRetry is the value of the annotation rukpak.io/retry that was acted upon. Of a value of more than
	// 256 bytes, which only an earlier version let in, it is the digest.
	// +optional
	LastHandledRetry string `json:"lastHandledRetry,omitempty"`

	// lastHandledRefresh is the value of the annotation rukpak.io/refresh that was acted upon. Of a value of more than
	// 256 bytes, which only an earlier version let in, it is the digest.
	// +optional
	LastHandledRefresh string `json:"lastHandledRefresh,omitempty"`
}

// RefreshStatus tells of looking up what the reference of a source names now.
type RefreshStatus struct {
	// lastTime is when the latest look ended.
	// +optional
	// +k8s:opaqueType
	LastTime *metav1.Time `json:"lastTime,omitempty"`
	// failures counts the looks, and the attempts at what they found, that have failed since one ended well.
	// +optional
	Failures int32 `json:"failures,omitempty"`
	// nextTime is when to look again after a failure.
	// +optional
	// +k8s:opaqueType
	NextTime *metav1.Time `json:"nextTime,omitempty"`
	// refused is the image whose content was refused. It is not tried again until the class changes or
	// somebody asks.
	// +optional
	Refused string `json:"refused,omitempty"`
}

// ResolvedSource is what content was taken from.
type ResolvedSource struct {
	// type is that of the source.
	// +required
	// +k8s:required
	Type SourceType `json:"type"`
	// image is set when type is Image.
	// +optional
	Image *ResolvedImage `json:"image,omitempty"`
	// upload is set when type is Upload.
	// +optional
	Upload *ResolvedUpload `json:"upload,omitempty"`
}

// ResolvedImage is the image that content was taken from.
type ResolvedImage struct {
	// reference names the image by digest. It is empty when the container runtime did not say.
	// +optional
	Reference string `json:"reference,omitempty"`
	// message says why there is no reference.
	// +optional
	Message string `json:"message,omitempty"`
	// platform is the one whose image was taken if the reference has several.
	// +optional
	Platform string `json:"platform,omitempty"`
}

// ResolvedUpload says who wrote the content.
type ResolvedUpload struct {
	// username is the user who wrote it.
	// +optional
	Username string `json:"username,omitempty"`
}

// ContentStatus describes one content of a bundle.
type ContentStatus struct {
	// uri is the path at the Kubernetes API that the content is read from. It is filled in when
	// the bundle is read.
	// +optional
	URI string `json:"uri,omitempty"`
	// digest of the bytes that are served, "sha256:" and 64 hexadecimal digits.
	// +required
	Digest string `json:"digest"`
	// size is the number of bytes that are served.
	// +required
	Size int64 `json:"size"`
	// mediaType of the bytes that are served.
	// +optional
	MediaType string `json:"mediaType,omitempty"`
	// format is the version of the canonical archive.
	// +optional
	Format string `json:"format,omitempty"`
	// uncompressedDigest is that of the canonical tar: the same files have the same
	// one, on every version of the server.
	// +optional
	UncompressedDigest string `json:"uncompressedDigest,omitempty"`
	// uncompressedSize is the number of bytes of the canonical tar.
	// +optional
	UncompressedSize int64 `json:"uncompressedSize,omitempty"`
	// files is the number of entries that are not directories.
	// +optional
	Files int64 `json:"files,omitempty"`
	// generation is that of the spec that the content came from.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// updateTime is when the content was committed.
	// +optional
	// +k8s:opaqueType
	UpdateTime metav1.Time `json:"updateTime,omitempty"`
}

// UnpackStatus is the latest attempt to unpack.
type UnpackStatus struct {
	// generation of the spec that the attempt is for.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// attempt counts the attempts for this generation, from 1.
	// +optional
	Attempt int32 `json:"attempt,omitempty"`
	// nonce is the attempt's random name.
	// +optional
	Nonce string `json:"nonce,omitempty"`
	// mode is the way that the attempt takes, never Auto.
	// +optional
	// +k8s:optional
	Mode UnpackMode `json:"mode,omitempty"`
	// platform is the one whose image the attempt takes if the reference has several.
	// +optional
	Platform string `json:"platform,omitempty"`
	// podName is the name of the unpack pod.
	// +optional
	PodName string `json:"podName,omitempty"`
	// podUID is the UID of the unpack pod, which alone may write the content.
	// +optional
	PodUID types.UID `json:"podUID,omitempty"`
	// resolvedReference is the image by digest, once the attempt knows it; from the beginning where
	// it takes what was found before.
	// +optional
	ResolvedReference string `json:"resolvedReference,omitempty"`
	// classUID is the UID of the class that the attempt followed.
	// +optional
	ClassUID types.UID `json:"classUID,omitempty"`
	// classResourceVersion is the version of the class that the attempt followed.
	// +optional
	ClassResourceVersion string `json:"classResourceVersion,omitempty"`
	// classGeneration is the generation of the class that the attempt followed: a change of
	// it lets a stalled bundle be tried again.
	// +optional
	ClassGeneration int64 `json:"classGeneration,omitempty"`
	// retryRequested means that somebody asked for the attempt, with the annotation rukpak.io/retry.
	// +optional
	RetryRequested bool `json:"retryRequested,omitempty"`
	// refresh means that the attempt takes what the reference names now in place of what it named before.
	// +optional
	Refresh bool `json:"refresh,omitempty"`
	// startTime is when the attempt began.
	// +optional
	// +k8s:opaqueType
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// endTime is when the attempt ended, for better or worse.
	// +optional
	// +k8s:opaqueType
	EndTime *metav1.Time `json:"endTime,omitempty"`
	// failures counts the failed attempts since the last success, spec change or retry.
	// +optional
	Failures int32 `json:"failures,omitempty"`
	// nextAttemptTime is when the next attempt begins, after a failure.
	// +optional
	// +k8s:opaqueType
	NextAttemptTime *metav1.Time `json:"nextAttemptTime,omitempty"`
	// reason is that of the latest failure, or of what the attempt waits for.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says it in words.
	// +optional
	Message string `json:"message,omitempty"`
}

// +k8s:conversion-gen:explicit-from=net/url.Values
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BundleContentOptions are the path below the subresource "content" and its query parameters. Admission
// sees them as the object of the CONNECT operation.
type BundleContentOptions struct {
	// +k8s:opaqueType
	metav1.TypeMeta `json:",inline"`

	// path is what follows the subresource in the path of the request: empty for the whole
	// content, "/" for the list of its root, and "/" with the path of a file or a directory
	// for that. It is taken from there, whatever the query says. GET and HEAD only.
	// +optional
	Path string `json:"path,omitempty"`

	// digest picks one of the contents that are still served, instead of the
	// current one. GET and HEAD only.
	// +optional
	Digest string `json:"digest,omitempty"`

	// format is what the whole content is read as: empty for the archive as it is stored,
	// "tar" for the tar in it. GET and HEAD only.
	// +optional
	Format string `json:"format,omitempty"`

	// recursive makes the list of a directory hold everything below it. GET and HEAD only.
	// +optional
	Recursive bool `json:"recursive,omitempty"`

	// after makes the list of a directory begin behind this name, which need not be in it: a
	// list that broke off goes on behind the last name that came. GET and HEAD only.
	// +optional
	After string `json:"after,omitempty"`

	// attempt is the nonce of the attempt that a PUT is made for. The server itself sends it
	// when it pulls an image directly.
	// +optional
	Attempt string `json:"attempt,omitempty"`
}

// +k8s:conversion-gen:explicit-from=net/url.Values
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BundleUploadOptions are the parameters of the subresource "uploads". Admission sees
// them as the object of the CONNECT operation.
type BundleUploadOptions struct {
	// +k8s:opaqueType
	metav1.TypeMeta `json:",inline"`

	// path is what follows the subresource in the path: the ID of an upload, or nothing.
	// +optional
	Path string `json:"path,omitempty"`
}
