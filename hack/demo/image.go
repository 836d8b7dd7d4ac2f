// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// example is what the example image holds.
var example = []struct{ name, text string }{
	{"manifests/configmap.yaml", `apiVersion: v1
kind: ConfigMap
metadata:
  name: hello
data:
  greeting: Hello from a bundle.
`},
	{"manifests/deployment.yaml", `apiVersion: apps/v1
kind: Deployment
metadata:
  name: hello
  labels: {app: hello}
spec:
  replicas: 2
  selector:
    matchLabels: {app: hello}
  template:
    metadata:
      labels: {app: hello}
    spec:
      containers:
      - name: hello
        image: registry.example/hello:1.0
        envFrom:
        - configMapRef: {name: hello}
        ports:
        - containerPort: 8080
`},
	{"manifests/service.yaml", `apiVersion: v1
kind: Service
metadata:
  name: hello
spec:
  selector: {app: hello}
  ports:
  - port: 80
    targetPort: 8080
`},
}

// preferredHost lets a bundle of an earlier run find its image again.
const preferredHost = "127.0.0.1:5055"

// images is a registry in this process.
type images struct {
	host   string
	server *http.Server
}

// serveRegistry starts a registry on loopback that keeps its images in memory.
func serveRegistry() (*images, error) {
	listener, err := net.Listen("tcp", preferredHost)
	if err != nil {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return nil, fmt.Errorf("start the registry: %w", err)
	}
	silent := log.New(io.Discard, "", 0)
	server := &http.Server{Handler: registry.New(registry.Logger(silent)), ErrorLog: silent, ReadHeaderTimeout: time.Minute}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintln(os.Stderr, "the registry ended:", err)
		}
	}()
	return &images{host: listener.Addr().String(), server: server}, nil
}

func (i *images) close() { i.server.Close() }

// pushExample pushes the example image and returns its reference by digest.
func (i *images) pushExample(ctx context.Context) (string, error) {
	image, err := exampleImage()
	if err != nil {
		return "", fmt.Errorf("make the example image: %w", err)
	}
	ref, err := name.ParseReference(i.host + "/examples/hello:v1")
	if err != nil {
		return "", fmt.Errorf("name the example image: %w", err)
	}
	if err := remote.Write(ref, image, remote.WithContext(ctx)); err != nil {
		return "", fmt.Errorf("push the example image: %w", err)
	}
	digest, err := image.Digest()
	if err != nil {
		return "", fmt.Errorf("make the example image: %w", err)
	}
	return ref.Context().Digest(digest.String()).String(), nil
}

// exampleImage is built FROM scratch, of one layer. It is the same at every run.
func exampleImage() (v1.Image, error) {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, file := range example {
		h := &tar.Header{Name: file.name, Mode: 0o644, Size: int64(len(file.text))}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(w, file.text); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	opened, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(layer.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	return mutate.AppendLayers(base, opened)
}
