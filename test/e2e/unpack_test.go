// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// TestMainJob does the main job as a user does it, with kubectl: an image that is built FROM
// scratch, of a realistic size, becomes content that is read through the Kubernetes API.
func TestMainJob(t *testing.T) {
	t.Parallel()
	s := begin(t)
	program, address, runs := s.tracer()
	tree := generated(1, 100, 60<<10)
	tree["bin/tracer"] = string(program)
	digest, tagged := s.pushImage(nodeRegistry, "v1", s.image(tree.archive(), v1.Config{
		Entrypoint: []string{"/bin/tracer"}, Cmd: []string{address}, Env: []string{"GODEBUG=nonsense=1", "GOMEMLIMIT=1B"}, WorkingDir: "/nowhere",
	}))
	s.runImage(digest)
	s.eventually("the program of the image tells when it is run", func() error {
		if runs() == 0 {
			return fmt.Errorf("nobody has connected to %s", address)
		}
		return nil
	})
	before := runs()

	for name, reference := range map[string]string{"by-digest": digest, "by-tag": tagged} {
		s.kubectl(fmt.Sprintf(`
apiVersion: rukpak.io/v1alpha1
kind: Bundle
metadata: {name: %s}
spec: {provisionerClassName: plain, source: {type: Image, image: {reference: %q}}}`, name, reference), "apply", "-f", "-")
	}
	for _, name := range []string{"by-digest", "by-tag"} {
		s.kubectl("", "wait", "--for=condition=Ready", "--timeout=2m", "bundle/"+name)
		data := s.kubectl("", "get", "--raw", contentPath(s.ns, name))
		want := s.kubectl("", "get", "bundle", name, "-o", "jsonpath={.status.content.digest}")
		if got := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(data))); got != want {
			t.Errorf("%s: kubectl reads %s, status.content.digest is %s", name, got, want)
		}
		compare(t, name, []byte(data), tree)
		if got := s.kubectl("", "get", "bundle", name, "-o", "jsonpath={.status.resolvedSource.image.reference}"); got != digest {
			t.Errorf("%s: resolved to %q, want %q", name, got, digest)
		}
	}
	if got := runs(); got != before {
		t.Errorf("the image's own program was run %d times", got-before)
	}
}

// runImage runs an image as a pod that is what its config says, to its end.
func (s *scope) runImage(reference string) {
	s.Helper()
	_, err := s.kube.CoreV1().Pods(s.ns).Create(s.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "image"},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](1000), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{Name: "image", Image: reference, WorkingDir: "/", SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			}}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
}

// TestModesAgree unpacks the same path of the same image in every mode.
func TestModesAgree(t *testing.T) {
	t.Parallel()
	s := begin(t)
	tree := small(s.ns)
	tree["elsewhere/file"] = "not below the path"
	digest, tagged := s.push("v1", tree)
	_, want := s.canonical(tree, "manifests")
	path := func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Path = "/manifests" }
	for _, mode := range []v1alpha1.UnpackMode{v1alpha1.UnpackModeImageVolume, v1alpha1.UnpackModeImageCopy} {
		class := s.class(strings.ToLower(string(mode)), v1alpha1.ProvisionerRaw, func(c *v1alpha1.ProvisionerClass) {
			c.Unpack = &v1alpha1.UnpackPolicy{Mode: mode}
		})
		for by, reference := range map[string]string{"digest": digest, "tag": tagged} {
			name := strings.ToLower(string(mode)) + "-" + by
			s.bundle(name, class, reference, path)
			t.Run(name, func(t *testing.T) {
				s.in(t).agrees(name, mode, digest, want.UncompressedDigest, tree.below("manifests"))
			})
		}
	}
	alone := s.standalone()
	for by, reference := range map[string]string{"digest": digest, "tag": tagged} {
		name := "direct-" + by
		alone.bundle(name, "raw", reference, path)
		t.Run(name, func(t *testing.T) {
			alone.in(t).agrees(name, v1alpha1.UnpackModeDirect, digest, want.UncompressedDigest, tree.below("manifests"))
		})
	}
}

// agrees checks one bundle of TestModesAgree.
func (s *scope) agrees(name string, mode v1alpha1.UnpackMode, resolved, uncompressed string, tree files) {
	s.Helper()
	b := s.unpacked(name)
	if got := b.Status.Unpack.Mode; got != mode {
		s.Errorf("unpacked in mode %s", got)
	}
	if got := b.Status.Content.UncompressedDigest; got != uncompressed {
		s.Errorf("uncompressedDigest is %s, want %s", got, uncompressed)
	}
	if got := b.Status.ResolvedSource; got == nil || got.Image == nil || got.Image.Reference != resolved {
		s.Errorf("resolvedSource is %+v, want %s", got, resolved)
	}
	s.holds(b, tree)
}
