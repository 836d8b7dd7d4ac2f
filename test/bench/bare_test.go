// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/pki"
)

const (
	// nodeRegistry is the registry of the local cluster's node.
	nodeRegistry = "127.0.0.1:5000"
	// bareGroup is the API group that the bare server stands for.
	bareGroup = "bench.rukpak.invalid"
	bareName  = "bare"
)

// bareServer is the bare server, reached in the same ways as ours.
type bareServer struct {
	direct, through target
}

// startBare runs the bare server as ours is run: a pod behind a Service and an APIService.
func (s *scope) startBare() bareServer {
	s.Helper()
	program := filepath.Join(s.TempDir(), bareName)
	if out, err := exec.CommandContext(s.Context(), "go", "build", "-o", program, "./bare").CombinedOutput(); err != nil {
		s.Fatalf("build the bare server: %v: %s", err, out)
	}
	data, err := os.ReadFile(program)
	s.must(err)
	image := s.push("bare", v1.Config{}, file{bareName, 0o555, data})
	authority, err := pki.NewAuthority("bench", 24*time.Hour)
	s.must(err)
	s.makeBarePod(image, authority)
	s.makeBareService(authority)

	root := "/apis/" + bareGroup + "/v1"
	bare := bareServer{direct: s.straight(s.ns, bareName, root, authority.CertPEM), through: s.throughKubeAPIServer(root)}
	for _, t := range []target{bare.direct, bare.through} {
		s.eventually("the bare server answers", func() error { return fetch(s.Context(), t.client, t.base+root, -1, make([]byte, readBuffer)) })
	}
	return bare
}

func (s *scope) makeBarePod(image string, authority *pki.Authority) {
	s.Helper()
	cert, key, err := authority.Serving([]string{bareName + "." + s.ns + ".svc"}, nil, 24*time.Hour)
	s.must(err)
	_, err = s.kube.CoreV1().Secrets(s.ns).Create(s.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: bareName},
		Data:       map[string][]byte{"BARE_CERT": cert, "BARE_KEY": key},
	}, metav1.CreateOptions{})
	s.must(err)
	_, err = s.kube.CoreV1().Pods(s.ns).Create(s.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: bareName, Labels: map[string]string{"app": bareName}},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken:  ptr.To(false),
			EnableServiceLinks:            ptr.To(false),
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			SecurityContext:               &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](65532)},
			Containers: []corev1.Container{{
				Name: bareName, Image: image, Command: []string{"/" + bareName},
				EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: bareName}}}},
			}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
}

func (s *scope) makeBareService(authority *pki.Authority) {
	s.Helper()
	_, err := s.kube.CoreV1().Services(s.ns).Create(s.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: bareName},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": bareName},
			Ports:    []corev1.ServicePort{{Port: 443, TargetPort: intstr.FromInt32(8443)}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	apiService := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apiServices.GroupVersion().String(), "kind": "APIService",
		"metadata": map[string]any{"name": "v1." + bareGroup},
		"spec": map[string]any{
			"group": bareGroup, "version": "v1", "groupPriorityMinimum": int64(100), "versionPriority": int64(1),
			"caBundle": base64.StdEncoding.EncodeToString(authority.CertPEM),
			"service":  map[string]any{"namespace": s.ns, "name": bareName, "port": int64(443)},
		},
	}}
	objects := s.objects.Resource(apiServices)
	_, err = objects.Create(s.Context(), apiService, metav1.CreateOptions{})
	s.must(err)
	s.cleanup("APIService of the bare server", func(ctx context.Context) error {
		return objects.Delete(ctx, apiService.GetName(), metav1.DeleteOptions{})
	})
}

// file is a file of an image.
type file struct {
	name string
	mode int64
	data []byte
}

// push puts an image FROM scratch with these files into the node's registry, under the tag 1 of a repository of
// the run's own, and returns its reference by digest.
func (s *scope) push(repository string, config v1.Config, files ...file) string {
	s.Helper()
	archive, err := archiveOf(files)
	s.must(err)
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil }, tarball.WithMediaType(types.OCILayer),
		tarball.WithCompressionLevel(gzip.BestSpeed), tarball.WithCompressedCaching)
	s.must(err)
	image, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layer)
	s.must(err)
	image, err = mutate.Config(image, config)
	s.must(err)
	ref, err := name.NewTag(fmt.Sprintf("%s/bench/%s/%s:1", nodeRegistry, s.ns, repository))
	s.must(err)
	s.must(remote.Write(ref, image, remote.WithContext(s.Context())))
	digest, err := image.Digest()
	s.must(err)
	return ref.Context().Digest(digest.String()).String()
}

func archiveOf(files []file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Typeflag: tar.TypeReg, Mode: f.mode, Size: int64(len(f.data))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, errors.Join(err, fmt.Errorf("file %s", f.name))
		}
	}
	if err := w.Close(); err != nil { // before the bytes are taken: it writes the last of them
		return nil, err
	}
	return out.Bytes(), nil
}
