// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"path"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// TestUnpackPods looks at the pods that were seen while bundles were unpacked in each way that has
// one. That the restricted Pod Security Standard lets them be is the word of the namespace, which enforces it.
func TestUnpackPods(t *testing.T) {
	t.Parallel()
	s := begin(t)
	digest, tagged := s.push("v1", files{"content/file": s.ns})
	pods := s.recordPods()
	for _, c := range []struct {
		name, reference string
		mode            v1alpha1.UnpackMode
	}{
		{"volume-digest", digest, v1alpha1.UnpackModeImageVolume},
		{"volume-tag", tagged, v1alpha1.UnpackModeImageVolume},
		{"copy-digest", digest, v1alpha1.UnpackModeImageCopy},
		{"copy-tag", tagged, v1alpha1.UnpackModeImageCopy},
	} {
		class := s.class(c.name, v1alpha1.ProvisionerRaw, func(class *v1alpha1.ProvisionerClass) {
			class.Unpack = &v1alpha1.UnpackPolicy{Mode: c.mode}
		})
		s.bundle(c.name, class, c.reference, func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Path = "/content" })
		t.Run(c.name, func(t *testing.T) {
			s := s.in(t)
			b := s.unpacked(c.name)
			attempt := b.Status.Unpack
			s.eventually("the pod is gone", func() error {
				if !pods.isGone(attempt.PodName) {
					return fmt.Errorf("pod %s is still there", attempt.PodName)
				}
				return nil
			})
			seen := 0
			for _, p := range pods.all() {
				if p.Labels[v1alpha1.LabelBundleUID] != string(b.UID) {
					continue
				}
				seen++
				if p.Name != attempt.PodName || p.UID != attempt.PodUID {
					t.Errorf("pod %s, UID %s, is not that of the only attempt, %s, UID %s", p.Name, p.UID, attempt.PodName, attempt.PodUID)
				}
				checkOwner(t, p, b)
				checkCredentials(t, p)
				checkCommands(t, p, c.reference)
			}
			if seen == 0 {
				t.Error("no pod was seen")
			}
		})
	}
}

func checkOwner(t *testing.T, p *corev1.Pod, b *v1alpha1.Bundle) {
	t.Helper()
	if len(p.OwnerReferences) != 1 || p.OwnerReferences[0].UID != b.UID || p.OwnerReferences[0].Kind != "Bundle" {
		t.Errorf("pod %s is owned by %+v", p.Name, p.OwnerReferences)
	}
}

// checkCredentials checks that a pod holds the one token with our audience and no other credential.
func checkCredentials(t *testing.T, p *corev1.Pod) {
	t.Helper()
	if p.Spec.AutomountServiceAccountToken == nil || *p.Spec.AutomountServiceAccountToken {
		t.Errorf("pod %s gets the token of its service account", p.Name)
	}
	tokens := 0
	for _, v := range p.Spec.Volumes {
		switch {
		case v.Secret != nil, v.HostPath != nil, v.ConfigMap != nil, v.CSI != nil:
			t.Errorf("pod %s has the volume %s, which it has no use for", p.Name, v.Name)
		case v.Projected != nil:
			for _, source := range v.Projected.Sources {
				if source.ServiceAccountToken == nil || source.ServiceAccountToken.Audience != v1alpha1.TokenAudience {
					t.Errorf("pod %s has the volume %s with %+v", p.Name, v.Name, source)
				}
				tokens++
			}
		}
	}
	if tokens != 1 {
		t.Errorf("pod %s has %d tokens", p.Name, tokens)
	}
}

// checkCommands checks that nothing of the bundle's image is run.
func checkCommands(t *testing.T, p *corev1.Pod, reference string) {
	t.Helper()
	for _, c := range append(append([]corev1.Container(nil), p.Spec.InitContainers...), p.Spec.Containers...) {
		switch {
		case len(c.Command) == 0:
			t.Errorf("container %s of pod %s runs what its image says", c.Name, p.Name)
		case c.Image == reference:
			// Our program is in a volume of the pod, mounted where it hides nothing.
			folder := path.Dir(c.Command[0])
			if !strings.HasPrefix(folder, "/.rukpak-") || !isMounted(p, c, folder) {
				t.Errorf("container %s of pod %s runs %q in the bundle's image", c.Name, p.Name, c.Command)
			}
		case c.Command[0] != "/rukpak-unpack":
			t.Errorf("container %s of pod %s runs %q", c.Name, p.Name, c.Command)
		}
	}
}

// isMounted tells whether a folder of a container is a volume that it cannot write to, and not one of the bundle's image:
// an emptyDir, or the server's own image.
func isMounted(p *corev1.Pod, c corev1.Container, folder string) bool {
	for _, m := range c.VolumeMounts {
		for _, v := range p.Spec.Volumes {
			if m.MountPath == folder && m.ReadOnly && m.Name == v.Name && (v.EmptyDir != nil || v.Image != nil && v.Image.Reference != c.Image) {
				return true
			}
		}
	}
	return false
}
