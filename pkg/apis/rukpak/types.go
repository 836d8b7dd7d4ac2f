// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package rukpak

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ProvisionerClass says who handles the bundles that name it, where their content
// is stored, how their unpack pods run, and how large they may be.
type ProvisionerClass struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	Provisioner          string
	Parameters           map[string]string
	Store                string
	Unpack               *UnpackPolicy
	Limits               *ContentLimits
	RevisionHistoryLimit *int32
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ProvisionerClassList is a list of classes.
type ProvisionerClassList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []ProvisionerClass
}

// UnpackMode is a way to get the files out of an image.
type UnpackMode string

const (
	UnpackModeAuto        UnpackMode = "Auto"
	UnpackModeImageVolume UnpackMode = "ImageVolume"
	UnpackModeImageCopy   UnpackMode = "ImageCopy"
	UnpackModeDirect      UnpackMode = "Direct"
)

// UnpackPolicy says how content is got out of images.
type UnpackPolicy struct {
	Mode                UnpackMode
	TimeoutSeconds      *int32
	BackoffLimit        *int32
	AllowedPullPolicies []corev1.PullPolicy
	PodTemplate         *UnpackPodTemplate
}

// UnpackPodTemplate is what a class may choose about unpack pods. Everything else
// about them is fixed, so that they pass the restricted Pod Security Standard.
type UnpackPodTemplate struct {
	Labels            map[string]string
	Annotations       map[string]string
	ImagePullSecrets  []LocalObjectReference
	NodeSelector      map[string]string
	Tolerations       []Toleration
	PriorityClassName string
	RuntimeClassName  *string
	Resources         *ResourceRequirements
	RunAsUser         *int64
	UserFrom          UserSource
}

// UserSource says who chooses the user ID of unpack pods.
type UserSource string

const (
	UserFromClass   UserSource = "Class"
	UserFromCluster UserSource = "Cluster"
)

// LocalObjectReference names an object in the namespace of the one that refers to it.
type LocalObjectReference struct {
	Name string
}

// Toleration has the fields and the meaning of a pod's toleration.
type Toleration struct {
	Key               string
	Operator          corev1.TolerationOperator
	Value             string
	Effect            corev1.TaintEffect
	TolerationSeconds *int64
}

// ResourceRequirements has the meaning of a container's resources.
type ResourceRequirements struct {
	Limits   map[corev1.ResourceName]resource.Quantity
	Requests map[corev1.ResourceName]resource.Quantity
}

// ContentLimits bound what one bundle may be. Each is above 0.
type ContentLimits struct {
	CompressedBytes *resource.Quantity
	Bytes           *resource.Quantity
	Files           *int64
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Bundle names content that lives outside the cluster. Its content is read from the
// subresource "content" once the condition ContentAvailable is True.
type Bundle struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	Spec   BundleSpec
	Status BundleStatus
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BundleList is a list of bundles.
type BundleList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []Bundle
}

// BundleSpec says which content is wanted.
type BundleSpec struct {
	ProvisionerClassName string
	Source               BundleSource
	ServiceAccountName   string
	ImagePullSecrets     []LocalObjectReference
	Suspend              bool

	RefreshIntervalSeconds *int32
}

// SourceType says which member of a BundleSource is set.
type SourceType string

const (
	SourceTypeImage  SourceType = "Image"
	SourceTypeUpload SourceType = "Upload"
)

// BundleSource says where content comes from: exactly the member that type names is set.
type BundleSource struct {
	Type   SourceType
	Image  *ImageSource
	Upload *UploadSource
}

// ImageSource is a container image whose files are the content.
type ImageSource struct {
	Reference  string
	PullPolicy corev1.PullPolicy
	Path       string
	Platform   string
}

// UploadSource is content that a client writes to the subresource "content".
type UploadSource struct {
	Digest string
}

// BundlePhase is a summary of the conditions.
type BundlePhase string

const (
	BundlePending   BundlePhase = "Pending"
	BundleUnpacking BundlePhase = "Unpacking"
	BundleUnpacked  BundlePhase = "Unpacked"
	BundleFailing   BundlePhase = "Failing"
)

// Types of conditions of a Bundle.
const (
	ConditionUnpacked         = "Unpacked"
	ConditionContentAvailable = "ContentAvailable"
	ConditionReady            = "Ready"
	ConditionStalled          = "Stalled"
)

// BundleStatus says what there is.
type BundleStatus struct {
	ObservedGeneration int64
	Phase              BundlePhase
	Provisioner        string
	ResolvedSource     *ResolvedSource
	Content            *ContentStatus
	History            []ContentStatus
	Unpack             *UnpackStatus
	Conditions         []metav1.Condition
	Refresh            *RefreshStatus
	LastHandledRetry   string
	LastHandledRefresh string
}

// RefreshStatus tells of looking up what the reference of a source names now.
type RefreshStatus struct {
	LastTime *metav1.Time
	Failures int32
	NextTime *metav1.Time
	Refused  string
}

// ResolvedSource is what content was taken from.
type ResolvedSource struct {
	Type   SourceType
	Image  *ResolvedImage
	Upload *ResolvedUpload
}

// ResolvedImage is the image that content was taken from.
type ResolvedImage struct {
	Reference string
	Message   string
	Platform  string
}

// ResolvedUpload says who wrote the content.
type ResolvedUpload struct {
	Username string
}

// ContentStatus describes one content of a bundle.
type ContentStatus struct {
	URI                string
	Digest             string
	Size               int64
	MediaType          string
	Format             string
	UncompressedDigest string
	UncompressedSize   int64
	Files              int64
	Generation         int64
	UpdateTime         metav1.Time
}

// UnpackStatus is the latest attempt to unpack.
type UnpackStatus struct {
	Generation           int64
	Attempt              int32
	Nonce                string
	Mode                 UnpackMode
	Platform             string
	PodName              string
	PodUID               types.UID
	ResolvedReference    string
	ClassUID             types.UID
	ClassResourceVersion string
	ClassGeneration      int64
	RetryRequested       bool
	Refresh              bool
	StartTime            *metav1.Time
	EndTime              *metav1.Time
	Failures             int32
	NextAttemptTime      *metav1.Time
	Reason               string
	Message              string
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BundleContentOptions are the path below the subresource "content" and its query parameters. Admission
// sees them as the object of the CONNECT operation.
type BundleContentOptions struct {
	metav1.TypeMeta
	Path      string
	Digest    string
	Format    string
	Recursive bool
	After     string
	Attempt   string
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BundleUploadOptions are the parameters of the subresource "uploads". Admission sees them as the object of the
// CONNECT operation.
type BundleUploadOptions struct {
	metav1.TypeMeta
	Path string
}
