// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// item is an entry of a layer, or, in a wanted tree, a file on disk.
type item struct {
	kind byte
	name string
	text string // content, or the target of a link
	mode int64
}

func file0644(name, text string) item   { return item{tar.TypeReg, name, text, 0o644} }
func directory(name string) item        { return item{tar.TypeDir, name, "", 0o755} }
func symlink(name, target string) item  { return item{tar.TypeSymlink, name, target, 0o777} }
func hardlink(name, target string) item { return item{tar.TypeLink, name, target, 0o644} }
func whiteout(name string) item         { return item{tar.TypeReg, name, "", 0} }

func tarOf(t *testing.T, items ...item) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, i := range items {
		h := &tar.Header{Typeflag: i.kind, Name: i.name, Mode: i.mode, Uid: 1000, Gid: 1000}
		if i.kind == tar.TypeReg {
			h.Size = int64(len(i.text))
		} else {
			h.Linkname = i.text
		}
		must(t, w.WriteHeader(h))
		if i.kind == tar.TypeReg {
			_, err := io.WriteString(w, i.text)
			must(t, err)
		}
	}
	must(t, w.Close())
	return buf.Bytes()
}

func layerOf(t *testing.T, items ...item) v1.Layer {
	t.Helper()
	raw := tarOf(t, items...)
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(raw)), nil
	})
	must(t, err)
	return l
}

func gzipped(t *testing.T, raw []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	_, err := w.Write(raw)
	must(t, err)
	must(t, w.Close())
	return buf.Bytes()
}

func zstded(t *testing.T, raw []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	must(t, err)
	return w.EncodeAll(raw, nil)
}

func imageOf(t *testing.T, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), layers...)
	must(t, err)
	return img
}

func staticLayer(raw []byte, mediaType types.MediaType) v1.Layer {
	return static.NewLayer(raw, mediaType)
}

// disk makes a folder that holds the items.
func disk(t *testing.T, items ...item) string {
	t.Helper()
	root := t.TempDir()
	for _, i := range items {
		at := filepath.Join(root, i.name)
		switch i.kind {
		case tar.TypeDir:
			must(t, os.Mkdir(at, 0o700))
			must(t, os.Chmod(at, os.FileMode(i.mode)))
		case tar.TypeSymlink:
			must(t, os.Symlink(i.text, at))
		case tar.TypeReg:
			must(t, os.WriteFile(at, []byte(i.text), 0o600))
			must(t, os.Chmod(at, os.FileMode(i.mode)))
		default:
			t.Fatalf("%s cannot be made on disk", i.name)
		}
	}
	return root
}

// serve runs a registry on loopback and returns its host. Wrap, if set, comes
// before the registry.
func serve(t *testing.T, wrap func(next http.Handler) http.Handler) string {
	t.Helper()
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if wrap != nil {
		handler = wrap(handler)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func push(t *testing.T, reference string, img v1.Image) string {
	t.Helper()
	ref, err := name.ParseReference(reference)
	must(t, err)
	must(t, remote.Write(ref, img))
	digest, err := img.Digest()
	must(t, err)
	return ref.Context().Digest(digest.String()).String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// strict is a puller without the floor that lets small limits be passed.
func strict() *Puller {
	p := New()
	p.floor = bounds{}
	return p
}
