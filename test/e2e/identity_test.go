// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// waiting makes a bundle whose unpack pod exists, is recorded, and never runs, and returns both.
func (s *scope) waiting(name, class string) (*v1alpha1.Bundle, *corev1.Pod) {
	s.Helper()
	s.bundle(name, class, nodeRegistry+"/e2e/never@sha256:"+strings.Repeat("0", 64))
	return s.recorded(name, "")
}

// recorded waits until an attempt, other than one that is over, has recorded its pod.
func (s *scope) recorded(name, over string) (*v1alpha1.Bundle, *corev1.Pod) {
	s.Helper()
	b := s.until(name, "has recorded its pod", func(b *v1alpha1.Bundle) error {
		if u := b.Status.Unpack; u == nil || u.PodUID == "" || u.Nonce == over {
			return fmt.Errorf("the attempt is %+v", u)
		}
		return nil
	})
	p, err := s.kube.CoreV1().Pods(s.ns).Get(s.ctx, b.Status.Unpack.PodName, metav1.GetOptions{})
	s.must(err)
	if p.UID != b.Status.Unpack.PodUID {
		s.Fatalf("pod %s has the UID %s, recorded is %s", p.Name, p.UID, b.Status.Unpack.PodUID)
	}
	return b, p
}

// put sends content to the Service or to kube-apiserver.
func (s *scope) put(client *http.Client, url, bundle string, content io.Reader) (int, string) {
	s.Helper()
	code, data, err := ask(s.ctx, client, http.MethodPut, url+contentPath(s.ns, bundle), content)
	s.must(err)
	return code, string(data)
}

// TestWhoseTokenWrites tries tokens of pods of one namespace, all of one service account, on bundles
// whose attempts run. The pods exist and never run, so that the tests are alone with the server.
func TestWhoseTokenWrites(t *testing.T) {
	t.Parallel()
	s := begin(t)
	class := s.class("nowhere", v1alpha1.ProvisionerRaw, func(c *v1alpha1.ProvisionerClass) {
		c.Unpack = &v1alpha1.UnpackPolicy{PodTemplate: &v1alpha1.UnpackPodTemplate{NodeSelector: map[string]string{"e2e.rukpak.io/" + s.ns: "nowhere"}}}
	})
	tree := files{"file": s.ns}
	archive, _ := s.canonical(tree, "")
	service := s.service()
	before, pod := s.waiting("app", class)
	_, podOfOther := s.waiting("other", class)
	impostor := s.impostor(pod)
	own := s.token(s.ns, "default", v1alpha1.TokenAudience, pod)

	for _, c := range []struct {
		name, bundle, token, url string
		client                   func(string) *http.Client
	}{
		{"of another pod", "app", s.token(s.ns, "default", v1alpha1.TokenAudience, impostor), service.url, service.client},
		{"of the pod of another bundle", "app", s.token(s.ns, "default", v1alpha1.TokenAudience, podOfOther), service.url, service.client},
		{"of the right pod for another bundle", "other", own, service.url, service.client},
		{"of no pod", "app", s.token(s.ns, "default", v1alpha1.TokenAudience, nil), service.url, service.client},
		{"of the right pod through kube-apiserver", "app", s.token(s.ns, "default", "", pod), s.config.Host, s.clusterClient},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := s.in(t)
			if code, answer := s.put(c.client(c.token), c.url, c.bundle, bytes.NewReader(archive)); code != http.StatusForbidden {
				t.Errorf("status %d, want 403: %.300s", code, answer)
			}
			s.untouched(c.bundle)
		})
	}

	t.Run("of an earlier attempt", func(t *testing.T) {
		s := s.in(t)
		s.askRetry("app", "again")
		_, next := s.recorded("app", before.Status.Unpack.Nonce)
		// The first pod is being deleted, and its token may or may not be good any more.
		code, answer := s.put(service.client(own), service.url, "app", bytes.NewReader(archive))
		if code != http.StatusUnauthorized && code != http.StatusForbidden {
			t.Errorf("status %d, want 401 or 403: %.300s", code, answer)
		}
		s.untouched("app")

		// What was refused so far is good when the right pod sends it.
		client := service.client(s.token(s.ns, "default", v1alpha1.TokenAudience, next))
		if code, answer := s.put(client, service.url, "app", bytes.NewReader(archive)); code != http.StatusCreated {
			t.Fatalf("the pod of the attempt gets %d, want 201: %.300s", code, answer)
		}
		s.holds(s.unpacked("app"), tree)
	})
}

// impostor makes a pod of the same service account that looks like an unpack pod.
func (s *scope) impostor(pod *corev1.Pod) *corev1.Pod {
	s.Helper()
	copied := pod.DeepCopy()
	copied.ObjectMeta = metav1.ObjectMeta{Name: pod.Name + "-2", Labels: pod.Labels, Annotations: pod.Annotations}
	copied.Spec.NodeName = ""
	made, err := s.kube.CoreV1().Pods(s.ns).Create(s.ctx, copied, metav1.CreateOptions{})
	s.must(err)
	return made
}

// untouched checks that a bundle has no content.
func (s *scope) untouched(name string) {
	s.Helper()
	b, err := s.api().Get(s.ctx, name, metav1.GetOptions{})
	s.must(err)
	if b.Status.Content != nil || b.Status.Phase == v1alpha1.BundleUnpacked {
		s.Errorf("bundle %s has content: %+v", name, b.Status.Content)
	}
}

// TestUploadOutlivesItsAttempt begins an upload, ends its attempt, and ends the upload.
func TestUploadOutlivesItsAttempt(t *testing.T) {
	t.Parallel()
	s := begin(t)
	class := s.class("nowhere", v1alpha1.ProvisionerRaw, func(c *v1alpha1.ProvisionerClass) {
		c.Unpack = &v1alpha1.UnpackPolicy{
			TimeoutSeconds: ptr.To[int32](300),
			PodTemplate:    &v1alpha1.UnpackPodTemplate{NodeSelector: map[string]string{"e2e.rukpak.io/" + s.ns: "nowhere"}},
		}
	})
	archive, _ := s.canonical(files{"file": s.ns}, "")
	service := s.service()
	first, pod := s.waiting("app", class)
	client := service.client(s.token(s.ns, "default", v1alpha1.TokenAudience, pod))
	body, writer := io.Pipe()
	type answer struct {
		code int
		text []byte
		err  error
	}
	answered := make(chan answer, 1)
	go func() {
		code, text, err := ask(s.ctx, client, http.MethodPut, service.url+contentPath(s.ns, "app"), body)
		answered <- answer{code, text, err}
	}()
	if _, err := writer.Write(archive[:len(archive)/2]); err != nil {
		t.Fatal(err)
	}
	s.eventually("the upload has begun", func() error {
		if !s.uploading() {
			return fmt.Errorf("there is no temporary file in the store")
		}
		return nil
	})
	s.askRetry("app", "again")
	second, _ := s.recorded("app", first.Status.Unpack.Nonce)
	if _, err := writer.Write(archive[len(archive)/2:]); err != nil {
		t.Fatal(err)
	}
	s.must(writer.Close())
	if a := <-answered; a.err != nil || a.code != http.StatusConflict {
		t.Errorf("the upload is answered %d, want 409: %.300s, %v", a.code, a.text, a.err)
	}
	s.untouched("app")
	now, err := s.api().Get(s.ctx, "app", metav1.GetOptions{})
	s.must(err)
	if now.Status.Unpack.Nonce != second.Status.Unpack.Nonce || now.Status.Unpack.EndTime != nil {
		t.Errorf("the attempt that runs was changed: %+v", now.Status.Unpack)
	}
}
