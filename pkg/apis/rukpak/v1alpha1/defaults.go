// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// Defaults of the optional fields.
const (
	DefaultStore                = "default"
	DefaultTimeoutSeconds       = 600
	DefaultBackoffLimit         = 6
	DefaultRevisionHistoryLimit = 2
	DefaultFiles                = 100_000
	DefaultServiceAccountName   = "default"
	DefaultImagePath            = "/"
)

// Defaults of the limits of a bundle, in bytes.
var (
	DefaultCompressedBytes = resource.MustParse("512Mi")
	DefaultBytes           = resource.MustParse("2Gi")
)

// SetDefaults_ProvisionerClass fills in the optional fields of a class.
func SetDefaults_ProvisionerClass(c *ProvisionerClass) {
	if c.Store == "" {
		c.Store = DefaultStore
	}
	if c.Unpack == nil {
		c.Unpack = &UnpackPolicy{}
	}
	if c.Unpack.Mode == "" {
		c.Unpack.Mode = UnpackModeAuto
	}
	if c.Unpack.TimeoutSeconds == nil {
		c.Unpack.TimeoutSeconds = ptr.To[int32](DefaultTimeoutSeconds)
	}
	if c.Unpack.BackoffLimit == nil {
		c.Unpack.BackoffLimit = ptr.To[int32](DefaultBackoffLimit)
	}
	if len(c.Unpack.AllowedPullPolicies) == 0 {
		c.Unpack.AllowedPullPolicies = []corev1.PullPolicy{corev1.PullAlways}
	}
	if c.Limits == nil {
		c.Limits = &ContentLimits{}
	}
	if c.Limits.CompressedBytes == nil {
		c.Limits.CompressedBytes = ptr.To(DefaultCompressedBytes.DeepCopy())
	}
	if c.Limits.Bytes == nil {
		c.Limits.Bytes = ptr.To(DefaultBytes.DeepCopy())
	}
	if c.Limits.Files == nil {
		c.Limits.Files = ptr.To[int64](DefaultFiles)
	}
	if c.RevisionHistoryLimit == nil {
		c.RevisionHistoryLimit = ptr.To[int32](DefaultRevisionHistoryLimit)
	}
}

// SetDefaults_Bundle fills in the optional fields of a bundle. The class is not among
// them: admission fills it in, since it depends on other objects. Nor is the service account, which
// would stay behind when the source becomes one that has none.
func SetDefaults_Bundle(b *Bundle) {
	src := &b.Spec.Source
	switch src.Type {
	case SourceTypeImage:
		if src.Image != nil {
			if src.Image.PullPolicy == "" {
				src.Image.PullPolicy = corev1.PullAlways
			}
			if src.Image.Path == "" {
				src.Image.Path = DefaultImagePath
			}
		}
	case SourceTypeUpload:
		if src.Upload == nil {
			src.Upload = &UploadSource{}
		}
	}
}
