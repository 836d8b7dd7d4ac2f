// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

func TestResolvedReference(t *testing.T) {
	const sameIn = "registry.example/app@sha256:fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
	const other = "mirror.example/app@sha256:fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
	resolve := func(imageID string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: ContainerResolve, ImageID: imageID}}
		}
	}
	unpack := func(imageID, volume string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			s := corev1.ContainerStatus{Name: ContainerUnpack, ImageID: imageID}
			if volume != "" {
				s.VolumeMounts = []corev1.VolumeMountStatus{{Name: volumeContent, VolumeStatus: &corev1.VolumeStatus{Image: &corev1.ImageVolumeStatus{ImageRef: volume}}}}
			}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{s}
		}
	}
	for name, test := range map[string]struct {
		mode      v1alpha1.UnpackMode
		reference string // of the spec
		taken     string // by the pod, if another
		status    func(*corev1.Pod)
		want      string
	}{
		"by digest":                    {mode: v1alpha1.UnpackModeImageVolume, reference: byDigestIn, status: resolve(other), want: byDigestIn},
		"by tag and digest":            {mode: v1alpha1.UnpackModeImageVolume, reference: byTag + "@" + testDigest, want: byTag + "@" + testDigest},
		"pinned":                       {mode: v1alpha1.UnpackModeImageVolume, reference: byTag, taken: byDigestIn, want: byDigestIn},
		"pinned copy":                  {mode: v1alpha1.UnpackModeImageCopy, reference: byTag, taken: byDigestIn, want: byDigestIn},
		"container":                    {mode: v1alpha1.UnpackModeImageVolume, reference: byTag, status: resolve(byDigestIn), want: byDigestIn},
		"container with scheme":        {mode: v1alpha1.UnpackModeImageVolume, reference: byTag, status: resolve("docker-pullable://" + byDigestIn), want: byDigestIn},
		"mirror":                       {mode: v1alpha1.UnpackModeImageVolume, reference: byTag, status: resolve(other), want: sameIn},
		"volume status":                {mode: v1alpha1.UnpackModeImageVolume, reference: byTag, status: unpack("ignored", byDigestIn), want: byDigestIn},
		"own image is not the answer":  {mode: v1alpha1.UnpackModeImageVolume, reference: byTag, status: unpack(other, "")},
		"configuration digest":         {mode: v1alpha1.UnpackModeImageVolume, reference: byTag, status: resolve(testDigest)},
		"configuration digest, scheme": {mode: v1alpha1.UnpackModeImageVolume, reference: byTag, status: resolve("docker://" + testDigest)},
		"tag":                          {mode: v1alpha1.UnpackModeImageVolume, reference: byTag, status: resolve(byTag)},
		"nothing":                      {mode: v1alpha1.UnpackModeImageVolume, reference: byTag},
		"copy":                         {mode: v1alpha1.UnpackModeImageCopy, reference: byTag, status: unpack(byDigestIn, ""), want: byDigestIn},
		"registry with a port":         {mode: v1alpha1.UnpackModeImageCopy, reference: "127.0.0.1:5000/a/b", status: unpack("127.0.0.1:5000/a/b@"+testDigest, ""), want: "127.0.0.1:5000/a/b@" + testDigest},
		"a port and a tag":             {mode: v1alpha1.UnpackModeImageCopy, reference: "127.0.0.1:5000/a/b:v1", status: unpack("somebody/else@"+testDigest, ""), want: "127.0.0.1:5000/a/b@" + testDigest},
		"a short name":                 {mode: v1alpha1.UnpackModeImageCopy, reference: "app", status: unpack("docker.io/library/app@"+testDigest, ""), want: "app@" + testDigest},
	} {
		t.Run(name, func(t *testing.T) {
			params := testParams(test.mode, test.reference, "/manifests")
			if test.taken != "" {
				params.Reference = test.taken
			}
			p := Build(params)
			if test.status != nil {
				test.status(p)
			}
			if got := ResolvedReference(p, test.reference); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
