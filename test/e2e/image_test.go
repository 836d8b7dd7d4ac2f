// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// nodeRegistry is the registry of the local cluster's node.
const nodeRegistry = "127.0.0.1:5000"

// files are the regular files of a tree, by their paths below its root.
type files map[string]string

// manifest is a small valid manifest.
func manifest(name, value string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: %s\ndata:\n  value: %q\n", name, value)
}

// small is a tree of two manifests that is unlike any other.
func small(value string) files {
	return files{"manifests/one.yaml": manifest("one", value), "manifests/more/two.yaml": manifest("two", value)}
}

// generated is a tree of as many manifests, each of about the given size in bytes, of
// words as they stand in real ones.
func generated(seed uint64, count, size int) files {
	random := rand.New(rand.NewPCG(seed, 1))
	words := []string{"name", "replicas", "description", "the", "maximum", "number", "of", "pods", "selector", "string", "type", "object", "properties", "0.9", "1.30.2"}
	tree := files{}
	for i := range count {
		var text strings.Builder
		fmt.Fprintf(&text, "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: generated-%03d\ndata:\n", i)
		for line := 0; text.Len() < size; line++ {
			fmt.Fprintf(&text, "  key-%05d: %q\n", line, fmt.Sprint(words[random.IntN(len(words))], " ", words[random.IntN(len(words))], " ", random.Uint64()))
		}
		tree[fmt.Sprintf("manifests/%02d/generated-%03d.yaml", i%7, i)] = text.String()
	}
	return tree
}

// archive is the tree as a tar, with the directories that it needs.
func (f files) archive() []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, entry := range f.listing() {
		h := &tar.Header{Name: entry, Typeflag: tar.TypeDir, Mode: 0o755}
		if !strings.HasSuffix(entry, "/") {
			h = &tar.Header{Name: entry, Typeflag: tar.TypeReg, Mode: mode(entry), Size: int64(len(f[entry]))}
		}
		// Nothing can fail: the headers are sound and the buffer takes all.
		if err := w.WriteHeader(h); err != nil {
			panic(err)
		}
		if _, err := io.WriteString(w, f[entry]); err != nil {
			panic(err)
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// mode makes what is in bin/ executable.
func mode(file string) int64 {
	if strings.HasPrefix(file, "bin/") {
		return 0o755
	}
	return 0o644
}

// listing names every entry of the tree, directories with a slash behind.
func (f files) listing() []string {
	entries := map[string]bool{}
	for file := range f {
		entries[file] = true
		for dir := path.Dir(file); dir != "."; dir = path.Dir(dir) {
			entries[dir+"/"] = true
		}
	}
	return slices.Sorted(maps.Keys(entries))
}

// image is FROM scratch with one layer.
func (s *scope) image(layer []byte, config v1.Config) v1.Image {
	s.Helper()
	return s.imageOf(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer)), nil }, config)
}

// imageOf is FROM scratch with the layer that a function opens, which it does more than once.
func (s *scope) imageOf(open tarball.Opener, config v1.Config) v1.Image {
	s.Helper()
	layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(1))
	s.must(err)
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.AppendLayers(base, layer)
	s.must(err)
	image, err = mutate.Config(image, config)
	s.must(err)
	return image
}

// push puts a tree into the node's registry under a repository of the test's own. It returns
// the reference by digest and that by tag.
func (s *scope) push(tag string, tree files) (digest, tagged string) {
	s.Helper()
	return s.pushImage(nodeRegistry, tag, s.image(tree.archive(), v1.Config{}))
}

func (s *scope) pushImage(host, tag string, image v1.Image) (digest, tagged string) {
	s.Helper()
	ref, err := name.NewTag(s.reference(host, tag))
	s.must(err)
	s.must(remote.Write(ref, image, remote.WithContext(s.ctx)))
	hash, err := image.Digest()
	s.must(err)
	return ref.Context().Digest(hash.String()).String(), ref.String()
}

// reference is that of an image of the test's own.
func (s *scope) reference(host, tag string) string {
	return fmt.Sprintf("%s/e2e/%s:%s", host, s.ns, tag)
}

// closedAddress is one on loopback that nobody listens at.
func (s *scope) closedAddress() string {
	s.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	s.must(err)
	s.must(listener.Close())
	return listener.Addr().String()
}

// tracer builds the program that tells when it is run, and listens for it at an address that
// pods reach. The function that it returns tells how often the program was run.
func (s *scope) tracer() (program []byte, address string, runs func() int) {
	s.Helper()
	file := filepath.Join(s.TempDir(), "tracer")
	out, err := exec.CommandContext(s.ctx, "go", "build", "-ldflags", "-s -w", "-o", file, "./tracer").CombinedOutput()
	if err != nil {
		s.Fatalf("build tracer: %v: %s", err, out)
	}
	program, err = os.ReadFile(file)
	s.must(err)
	listener, err := net.Listen("tcp", net.JoinHostPort(s.nodeAddress(), "0"))
	s.must(err)
	s.Cleanup(func() { s.must(listener.Close()) })
	var count counter
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			count.add()
			if err := connection.Close(); err != nil {
				return
			}
		}
	}()
	return program, listener.Addr().String(), count.value
}
