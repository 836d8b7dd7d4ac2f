// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// foreign is an architecture that the node does not have.
func foreign() string {
	if runtime.GOARCH == "arm64" {
		return "amd64"
	}
	return "arm64"
}

// pushPlatforms pushes an index of one image for each architecture, whose files say which it is. It returns
// the reference to the index by digest, and those to its images.
func (s *scope) pushPlatforms(tag string, architectures ...string) (index string, images map[string]string) {
	s.Helper()
	ref, err := name.NewTag(s.reference(nodeRegistry, tag))
	s.must(err)
	all := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	images = map[string]string{}
	for _, architecture := range architectures {
		image := s.image(files{"which": architecture}.archive(), v1.Config{})
		config, err := image.ConfigFile()
		s.must(err)
		config = config.DeepCopy()
		config.OS, config.Architecture = "linux", architecture
		image, err = mutate.ConfigFile(image, config)
		s.must(err)
		digest, err := image.Digest()
		s.must(err)
		images[architecture] = ref.Context().Digest(digest.String()).String()
		all = mutate.AppendManifests(all, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
			MediaType: types.OCIManifestSchema1, Platform: &v1.Platform{OS: "linux", Architecture: architecture},
		}})
	}
	s.must(remote.WriteIndex(ref, all, remote.WithContext(s.ctx)))
	digest, err := all.Digest()
	s.must(err)
	return ref.Context().Digest(digest.String()).String(), images
}

func withPlatform(p string) func(*v1alpha1.Bundle) {
	return func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Platform = p }
}

// TestPlatform asks for images of several platforms, on a cluster whose node has one.
func TestPlatform(t *testing.T) {
	t.Parallel()
	s := begin(t)
	own, other := runtime.GOARCH, foreign()
	index, images := s.pushPlatforms("both", own, other)
	othersAlone, _ := s.pushPlatforms("other", other)
	class := s.impatient("raw", func(c *v1alpha1.ProvisionerClass) { c.Provisioner = v1alpha1.ProvisionerRaw })
	onOwn := s.class("on-own", v1alpha1.ProvisionerRaw, func(c *v1alpha1.ProvisionerClass) {
		c.Unpack = &v1alpha1.UnpackPolicy{PodTemplate: &v1alpha1.UnpackPodTemplate{NodeSelector: map[string]string{corev1.LabelArchStable: own}}}
	})
	for _, c := range []struct {
		name, class, reference, platform string
		which                            string
		status                           metav1.ConditionStatus
		reason                           string
		words                            []string
	}{
		{name: "by-default", class: class, reference: index, which: own},
		{name: "asked-for", class: class, reference: index, platform: "linux/" + own, which: own},
		{name: "of-class", class: onOwn, reference: index, which: own},
		{name: "no-such-node", class: class, reference: index, platform: "linux/" + other, status: metav1.ConditionUnknown, reason: v1alpha1.ReasonUnschedulable, words: []string{"linux/" + other, "node of that architecture"}},
		{name: "class-says-otherwise", class: onOwn, reference: index, platform: "linux/" + other, status: metav1.ConditionFalse, reason: v1alpha1.ReasonPlatformNotAllowed, words: []string{"linux/" + other, "linux/" + own}},
		{name: "variant", class: class, reference: index, platform: "linux/" + own + "/v9", status: metav1.ConditionFalse, reason: v1alpha1.ReasonPlatformNotAllowed, words: []string{"variant", "digest"}},
		// An image that is named by its own digest is what it is, whatever it runs on.
		{name: "others-by-digest", class: class, reference: images[other], which: other},
		{name: "not-in-the-index", class: "raw", reference: othersAlone, status: metav1.ConditionUnknown, reason: v1alpha1.ReasonPlatformNotSupported, words: []string{"no match for platform"}},
	} {
		s.bundle(c.name, c.class, c.reference, withPlatform(c.platform))
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := s.in(t)
			if c.reason != "" {
				s.says(c.name, c.status, c.reason, c.words...)
				return
			}
			b := s.unpacked(c.name)
			s.holds(b, files{"which": c.which})
			if got := b.Status.ResolvedSource.Image; got.Platform != "linux/"+own || got.Reference != c.reference {
				t.Errorf("resolved to %+v", got)
			}
		})
	}
	t.Run("by the server", func(t *testing.T) {
		t.Parallel()
		s := s.in(t)
		alone := s.standalone("--default-platform=linux/" + other)
		for _, arch := range []string{own, other} {
			alone.bundle(arch, "raw", index, withPlatform("linux/"+arch))
		}
		alone.bundle("by-default", "raw", index)
		alone.bundle("none", "raw", index, withPlatform("linux/mips"))
		for name, arch := range map[string]string{own: own, other: other, "by-default": other} {
			b := alone.unpacked(name)
			alone.holds(b, files{"which": arch})
			if got := b.Status.ResolvedSource.Image.Platform; got != "linux/"+arch {
				t.Errorf("%s: resolved for %s", name, got)
			}
		}
		alone.says("none", metav1.ConditionUnknown, v1alpha1.ReasonPlatformNotSupported, "linux/mips", "only for")
	})
}

// TestChangeOfPlatform is a change of the source: the content of the old one is served until the new one is there.
func TestChangeOfPlatform(t *testing.T) {
	t.Parallel()
	s := begin(t)
	own, other := runtime.GOARCH, foreign()
	index, _ := s.pushPlatforms("both", own, other)
	alone := s.standalone()
	alone.bundle("app", "raw", index)
	before := alone.unpacked("app")
	alone.holds(before, files{"which": own})
	alone.update("app", withPlatform("linux/"+other))
	after := alone.unpacked("app")
	alone.holds(after, files{"which": other})
	if len(after.Status.History) != 1 || after.Status.History[0].Digest != before.Status.Content.Digest {
		t.Errorf("history is %+v", after.Status.History)
	}
}

// TestLongestNames has names that are as long as the API lets them be, and two that begin alike for longer
// than a pod's name is.
func TestLongestNames(t *testing.T) {
	t.Parallel()
	s := begin(t)
	tree := small(s.ns)
	_, tag := s.push("v1", tree) // by digest they would share a pod
	label := strings.Repeat("n", 63)
	long := strings.Join([]string{label, label, label, label[:60]}, ".") // 252
	class := s.class(strings.Repeat("c", 253-len(s.ns)-1), v1alpha1.ProvisionerPlain, nil)
	if len(class) != 253 {
		t.Fatalf("the class's name has %d characters", len(class))
	}
	pods := map[string]bool{}
	names := []string{long + "a", long + "b", "a." + strings.Repeat("0", 63) + ".b", strings.Repeat("9", 63), "0"}
	for _, name := range names {
		s.bundle(name, class, tag)
	}
	for _, name := range names {
		b := s.unpacked(name)
		s.holds(b, tree)
		if n := b.Status.Unpack.PodName; pods[n] || len(n) > 63 {
			t.Errorf("bundle %s had the pod %q", name, n)
		}
		pods[b.Status.Unpack.PodName] = true
	}
	s.noPods()
	s.must(s.api().Delete(s.ctx, names[0], metav1.DeleteOptions{}))
	s.holds(s.unpacked(names[1]), tree) // the other one is not touched
}
