// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// updates is how often the content of a bundle is replaced while a pod reads it.
const updates = 10

// marked is a tree whose files all say a mark.
func marked(mark string) files {
	tree := files{}
	for i := range 100 {
		tree[fmt.Sprintf("data/%03d", i)] = mark
	}
	return tree
}

// program builds a program of this folder and makes an image of it.
func (s *scope) program(name string) (reference string) {
	s.Helper()
	file := filepath.Join(s.TempDir(), name)
	out, err := exec.CommandContext(s.ctx, "go", "build", "-ldflags", "-s -w", "-o", file, "./"+name).CombinedOutput()
	if err != nil {
		s.Fatalf("build %s: %v: %s", name, err, out)
	}
	raw, err := os.ReadFile(file)
	s.must(err)
	image := s.image(files{"bin/" + name: string(raw)}.archive(), v1.Config{Entrypoint: []string{"/bin/" + name}})
	reference, _ = s.pushImage(nodeRegistry, name, image)
	return reference
}

// serverImage is the image that the server runs.
func (s *scope) serverImage() string {
	s.Helper()
	set, err := s.kube.AppsV1().StatefulSets(serverNamespace).Get(s.ctx, serverName, metav1.GetOptions{})
	s.must(err)
	return set.Spec.Template.Spec.Containers[0].Image
}

// fill makes content the bundle's.
func (s *scope) fill(name string, tree files) {
	s.Helper()
	archive := tree.archive()
	s.must(s.retry(func() error {
		_, err := s.api().PutContent(s.ctx, name, bytes.NewReader(archive), typed.PutContentOptions{})
		return err
	}))
}

// TestFetchFollowsUpdates runs the example of a sidecar, with a program that reads all files all the time, while the content is replaced.
func TestFetchFollowsUpdates(t *testing.T) {
	t.Parallel()
	s := begin(t)
	example, err := os.ReadFile("../../artifacts/examples/fetch.yaml")
	s.must(err)
	text := strings.NewReplacer("namespace: default", "namespace: "+s.ns, "rukpak-apiserver:latest", s.serverImage(),
		"registry.example/program:1", s.program("reader"), "--files=/content/current", "/content/current").Replace(string(example))
	s.bundle("app", "raw", "", func(b *v1alpha1.Bundle) { b.Spec.Source = v1alpha1.BundleSource{Type: v1alpha1.SourceTypeUpload} })
	s.kubectl(text, "apply", "-f", "-")
	// The program does not start before there is content.
	s.eventually("the sidecar waits", func() error {
		p, err := s.kube.CoreV1().Pods(s.ns).Get(s.ctx, "app", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(p.Status.InitContainerStatuses) == 0 || p.Status.InitContainerStatuses[0].State.Running == nil {
			return fmt.Errorf("%+v", p.Status.InitContainerStatuses)
		}
		if len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Waiting == nil {
			return final("the program was started: %+v", p.Status.ContainerStatuses)
		}
		return nil
	})
	for i := range updates + 1 {
		mark := fmt.Sprint("update-", i)
		s.fill("app", marked(mark))
		s.eventually("the program sees "+mark, func() error { return s.saw("app", mark) })
	}
	s.logsOf("app", "fetch")
}

// saw looks whether the program has said a mark, and still runs.
func (s *scope) saw(pod, mark string) error {
	p, err := s.kube.CoreV1().Pods(s.ns).Get(s.ctx, pod, metav1.GetOptions{})
	if err != nil {
		return err
	}
	log, err := s.logOf(pod, "program")
	if err != nil {
		return err
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Terminated != nil || c.RestartCount > 0 {
			return final("the program ended: %+v\n%s", c, log)
		}
	}
	if !strings.Contains(log, mark+" ") {
		return fmt.Errorf("it said %q", log)
	}
	return nil
}

func (s *scope) logOf(pod, container string) (string, error) {
	stream, err := s.kube.CoreV1().Pods(s.ns).GetLogs(pod, &corev1.PodLogOptions{Container: container}).Stream(s.ctx)
	if apierrors.IsBadRequest(err) {
		return "", nil // it has not started
	}
	if err != nil {
		return "", err
	}
	defer stream.Close()
	raw, err := io.ReadAll(stream)
	return string(raw), err
}

func (s *scope) logsOf(pod string, containers ...string) {
	s.Helper()
	for _, c := range append(containers, "program") {
		log, err := s.logOf(pod, c)
		s.Logf("%s (%v):\n%s", c, err, log)
	}
}
