// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// emptyConfig is the media type of a configuration that says nothing, as `oras push` writes it.
const emptyConfig types.MediaType = "application/vnd.oci.empty.v1+json"

// contentCauses are those that lie in what the image is, or holds.
func contentCauses() []cause {
	return []cause{
		{name: "invalid reference", reason: v1alpha1.ReasonInvalidImageReference, stalled: true, words: []string{"cannot read the image's name"}, arrange: invalidReference},
		{name: "artifact mounts empty", reason: v1alpha1.ReasonImageEmpty, stalled: true, words: []string{"not one file in the image"}, arrange: artifact("application/yaml", false)},
		{name: "artifact does not mount", reason: v1alpha1.ReasonArtifactNotSupported, stalled: true, words: []string{"no image of files"}, arrange: artifact(types.OCILayer, true)},
		{name: "unreadable file", reason: v1alpha1.ReasonContentUnreadable, words: []string{`"manifests/private.yaml"`, "permission denied", "user 65532", "unpack.podTemplate.runAsUser"}, arrange: unreadable},
		{name: "too many bytes", reason: v1alpha1.ReasonLimitExceeded, stalled: true, words: []string{"bytes uncompressed"}, arrange: tooLarge(v1alpha1.ContentLimits{Bytes: ptr.To(resource.MustParse("100Ki"))})},
		{name: "too many compressed bytes", reason: v1alpha1.ReasonLimitExceeded, stalled: true, words: []string{"10240 bytes compressed"}, arrange: tooLarge(v1alpha1.ContentLimits{CompressedBytes: ptr.To(resource.MustParse("10Ki"))})},
		{name: "too many files", reason: v1alpha1.ReasonLimitExceeded, stalled: true, words: []string{"more than 19 files"}, arrange: tooLarge(v1alpha1.ContentLimits{Files: ptr.To[int64](19)})},
		{name: "path not supported", reason: v1alpha1.ReasonPathNotSupported, stalled: true, words: []string{"mode ImageCopy", "choose a folder below it"}, arrange: pathNotSupported},
		{name: "mode not allowed", reason: v1alpha1.ReasonModeNotAllowed, stalled: true, words: []string{"does not allow mode Direct"}, arrange: modeNotAllowed},
	}
}

// invalidReference is a name that registries may know and that no container runtime reads.
func invalidReference(p *plight) func() {
	digest, _ := p.push("v1", p.tree)
	p.bundle("app", p.patient(nil), nodeRegistry+"/e2e/a..b:v1")
	return func() { p.update("app", func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Reference = digest }) }
}

// document is a manifest as it is sent.
type document []byte

func (d document) RawManifest() ([]byte, error) { return d, nil }

func (d document) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// artifact pushes what a tool for artifacts does: a configuration that says nothing, and a blob with a media
// type of its own or, as of a folder, a layer that is not in that configuration.
func artifact(mediaType types.MediaType, folder bool) func(*plight) func() {
	return func(p *plight) func() {
		blob := []byte(manifest("plain", p.ns))
		if folder {
			blob = p.gzipped(p.tree.archive())
		}
		ref, err := name.NewTag(p.reference(nodeRegistry, "v1"))
		p.must(err)
		content := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
		push := func(data []byte, mediaType types.MediaType) v1.Descriptor {
			layer := static.NewLayer(data, mediaType)
			p.must(remote.WriteLayer(ref.Context(), layer, remote.WithContext(p.ctx)))
			digest, err := layer.Digest()
			p.must(err)
			return v1.Descriptor{MediaType: mediaType, Digest: digest, Size: int64(len(data))}
		}
		content.Config = push(fmt.Appendf(nil, `{"e2e": %q}`, p.ns), emptyConfig) // runtimes know an image by it
		content.Layers = []v1.Descriptor{push(blob, mediaType)}
		raw, err := json.Marshal(content)
		p.must(err)
		p.must(remote.Put(ref, document(raw), remote.WithContext(p.ctx)))
		p.bundle("app", p.patient(nil), ref.String())
		return func() {
			p.push("v1", p.tree)
			p.askRetry("app", "it is an image now")
		}
	}
}

func (s *scope) gzipped(data []byte) []byte {
	s.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(data)
	s.must(err)
	s.must(w.Close())
	return b.Bytes()
}

// unreadable pushes an image with a file that only its owner may read.
func unreadable(p *plight) func() {
	const owner = 1234
	p.tree["manifests/private.yaml"] = manifest("private", p.ns)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, file := range p.tree.listing() {
		h := &tar.Header{Name: file, Typeflag: tar.TypeDir, Mode: 0o755}
		if text, ok := p.tree[file]; ok {
			h = &tar.Header{Name: file, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))}
			if file == "manifests/private.yaml" {
				h.Mode, h.Uid, h.Gid = 0o600, owner, owner
			}
		}
		p.must(w.WriteHeader(h))
		_, err := w.Write([]byte(p.tree[file]))
		p.must(err)
	}
	p.must(w.Close())
	digest, _ := p.pushImage(nodeRegistry, "v1", p.image(archive.Bytes(), v1.Config{}))
	class := p.patient(nil)
	p.bundle("app", class, digest)
	return func() {
		p.updateClass(class, func(c *v1alpha1.ProvisionerClass) {
			c.Unpack = &v1alpha1.UnpackPolicy{PodTemplate: &v1alpha1.UnpackPodTemplate{RunAsUser: ptr.To[int64](owner)}}
		})
	}
}

// tooLarge takes a tree of 20 files and some 200 KiB for a class with limits.
func tooLarge(limits v1alpha1.ContentLimits) func(*plight) func() {
	return func(p *plight) func() {
		p.tree = generated(2, 20, 10<<10)
		digest, _ := p.push("v1", p.tree)
		class := p.patient(func(c *v1alpha1.ProvisionerClass) { c.Limits = &limits })
		p.bundle("app", class, digest)
		return func() { p.updateClass(class, func(c *v1alpha1.ProvisionerClass) { c.Limits = nil }) }
	}
}

func pathNotSupported(p *plight) func() {
	p.tree = files{"one": p.ns, "more/two": p.ns}
	digest, _ := p.push("v1", files{"content/one": p.ns, "content/more/two": p.ns})
	class := p.class("copy", v1alpha1.ProvisionerRaw, func(c *v1alpha1.ProvisionerClass) {
		c.Unpack = &v1alpha1.UnpackPolicy{Mode: v1alpha1.UnpackModeImageCopy}
	})
	p.bundle("app", class, digest)
	return func() { p.update("app", func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Path = "/content" }) }
}

func modeNotAllowed(p *plight) func() {
	digest, _ := p.push("v1", p.tree)
	class := p.patient(func(c *v1alpha1.ProvisionerClass) {
		c.Unpack = &v1alpha1.UnpackPolicy{Mode: v1alpha1.UnpackModeDirect}
	})
	p.bundle("app", class, digest)
	return func() { p.updateClass(class, func(c *v1alpha1.ProvisionerClass) { c.Unpack = nil }) }
}

// limited is a class whose containers have so much memory.
func limited(memory string) func(*v1alpha1.ProvisionerClass) {
	return func(c *v1alpha1.ProvisionerClass) {
		c.Unpack = &v1alpha1.UnpackPolicy{PodTemplate: &v1alpha1.UnpackPodTemplate{Resources: &v1alpha1.ResourceRequirements{
			Limits: map[corev1.ResourceName]resource.Quantity{corev1.ResourceMemory: resource.MustParse(memory)},
		}}}
	}
}
