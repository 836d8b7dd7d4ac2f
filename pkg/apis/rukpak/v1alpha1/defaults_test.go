// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

func TestDefaultsOfAClass(t *testing.T) {
	filled := func() *ProvisionerClass {
		return &ProvisionerClass{
			Provisioner: ProvisionerRaw, Store: "default", RevisionHistoryLimit: ptr.To[int32](2),
			Unpack: &UnpackPolicy{Mode: UnpackModeAuto, TimeoutSeconds: ptr.To[int32](600), BackoffLimit: ptr.To[int32](6), AllowedPullPolicies: []corev1.PullPolicy{corev1.PullAlways}},
			Limits: &ContentLimits{CompressedBytes: ptr.To(resource.MustParse("512Mi")), Bytes: ptr.To(resource.MustParse("2Gi")), Files: ptr.To[int64](100000)},
		}
	}
	chosen := &ProvisionerClass{
		Provisioner: ProvisionerRaw, Store: "bucket", RevisionHistoryLimit: ptr.To[int32](0),
		Unpack: &UnpackPolicy{Mode: UnpackModeDirect, TimeoutSeconds: ptr.To[int32](1), BackoffLimit: ptr.To[int32](0), AllowedPullPolicies: []corev1.PullPolicy{corev1.PullNever}},
		Limits: &ContentLimits{CompressedBytes: ptr.To(resource.MustParse("1")), Bytes: ptr.To(resource.MustParse("2")), Files: ptr.To[int64](3)},
	}
	for name, test := range map[string]struct{ class, want *ProvisionerClass }{
		"nothing is chosen":    {&ProvisionerClass{Provisioner: ProvisionerRaw}, filled()},
		"empty parts":          {&ProvisionerClass{Provisioner: ProvisionerRaw, Unpack: &UnpackPolicy{}, Limits: &ContentLimits{}}, filled()},
		"everything is chosen": {chosen.DeepCopy(), chosen},
	} {
		t.Run(name, func(t *testing.T) {
			if SetDefaults_ProvisionerClass(test.class); !apiequality.Semantic.DeepEqual(test.class, test.want) {
				t.Errorf("got %+v", test.class)
			}
		})
	}
	// One class's limits are no other's.
	a, b := &ProvisionerClass{}, &ProvisionerClass{}
	SetDefaults_ProvisionerClass(a)
	a.Limits.Bytes.Set(1)
	if SetDefaults_ProvisionerClass(b); b.Limits.Bytes.Value() != 2<<30 {
		t.Errorf("the default has become %s", b.Limits.Bytes)
	}
}

func TestDefaultsOfABundle(t *testing.T) {
	image := func(i ImageSource) BundleSource { return BundleSource{Type: SourceTypeImage, Image: &i} }
	for name, test := range map[string]struct{ spec, want BundleSpec }{
		"an image": {
			BundleSpec{Source: image(ImageSource{Reference: "a"})},
			BundleSpec{Source: image(ImageSource{Reference: "a", PullPolicy: "Always", Path: "/"})},
		},
		"an image, all chosen": {
			BundleSpec{ServiceAccountName: "x", Source: image(ImageSource{Reference: "a", PullPolicy: "Never", Path: "/m"})},
			BundleSpec{ServiceAccountName: "x", Source: image(ImageSource{Reference: "a", PullPolicy: "Never", Path: "/m"})},
		},
		"an image that is not said": {BundleSpec{Source: BundleSource{Type: SourceTypeImage}}, BundleSpec{Source: BundleSource{Type: SourceTypeImage}}},
		"an upload":                 {BundleSpec{Source: BundleSource{Type: SourceTypeUpload}}, BundleSpec{Source: BundleSource{Type: SourceTypeUpload, Upload: &UploadSource{}}}},
		"no type":                   {BundleSpec{}, BundleSpec{}},
	} {
		t.Run(name, func(t *testing.T) {
			b := &Bundle{Spec: test.spec}
			if SetDefaults_Bundle(b); !apiequality.Semantic.DeepEqual(b.Spec, test.want) {
				t.Errorf("got %+v", b.Spec)
			}
		})
	}
}

func TestFieldSelectors(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for label, want := range map[string]bool{
		"metadata.name": true, "metadata.namespace": true, "spec.provisionerClassName": true, "spec.source.type": true, "status.phase": true,
		"spec.source.image.reference": false, "": false,
	} {
		got, value, err := scheme.ConvertFieldLabel(SchemeGroupVersion.WithKind("Bundle"), label, "x")
		if (err == nil) != want || (want && (got != label || value != "x")) {
			t.Errorf("%q: %q, %q, %v", label, got, value, err)
		}
	}
}
