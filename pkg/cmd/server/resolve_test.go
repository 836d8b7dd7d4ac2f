// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

var resolved = "registry.example/app@sha256:" + strings.Repeat("a", 64)

// unpackPod is a pod that runs in the bundle's image; imageID is what its node says.
func unpackPod(imageID string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "unpack", Namespace: "team", ResourceVersion: "1"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: pod.ContainerUnpack, Image: "registry.example/app:v1"}}},
	}
	if imageID != "" {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.ContainerUnpack, ImageID: imageID}}
	}
	return p
}

func TestWhichImageWasUnpacked(t *testing.T) {
	for name, test := range map[string]struct {
		before *corev1.Pod // none if nil
		later  func(context.Context, *fake.Clientset) error
		err    error // of the cluster
		want   string
	}{
		"the node has said":     {before: unpackPod(resolved), want: resolved},
		"the node says later":   {before: unpackPod(""), later: update(unpackPod(resolved)), want: resolved},
		"the node says nothing": {before: unpackPod("")},
		"the node says no name": {before: unpackPod("sha256:" + strings.Repeat("b", 64))},
		"the pod goes": {before: unpackPod(""), later: func(ctx context.Context, c *fake.Clientset) error {
			return c.CoreV1().Pods("team").Delete(ctx, "unpack", metav1.DeleteOptions{})
		}},
		"the pod is gone":     {},
		"nobody can be asked": {err: errors.New("no answer")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				if test.before != nil {
					client = fake.NewClientset(test.before)
				}
				if test.err != nil {
					client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, test.err })
				}
				if test.later != nil {
					go func() {
						synctest.Wait() // until somebody watches
						if err := test.later(t.Context(), client); err != nil {
							t.Error(err)
						}
					}()
				}
				start := time.Now()
				got, err := waitResolved(t.Context(), client, "team", "unpack", "registry.example/app:v1")
				if !errors.Is(err, test.err) || got != test.want {
					t.Errorf("got %q, %v; want %q", got, err, test.want)
				}
				if waited := time.Since(start); waited > resolveTimeout {
					t.Errorf("it waited %v", waited)
				}
			})
		})
	}
}

func update(p *corev1.Pod) func(context.Context, *fake.Clientset) error {
	return func(ctx context.Context, c *fake.Clientset) error {
		_, err := c.CoreV1().Pods("team").Update(ctx, p, metav1.UpdateOptions{})
		return err
	}
}

func TestResolver(t *testing.T) {
	p := &process{kube: fake.NewClientset(unpackPod(resolved))}
	const pinned = "other.example/app@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for name, test := range map[string]struct {
		source *rukpak.ImageSource
		unpack *rukpak.UnpackStatus
		want   string
	}{
		"an upload":                   {unpack: &rukpak.UnpackStatus{}},
		"no attempt":                  {source: &rukpak.ImageSource{Reference: pinned}},
		"a digest is its own answer":  {source: &rukpak.ImageSource{Reference: pinned}, unpack: &rukpak.UnpackStatus{PodName: "gone"}, want: pinned},
		"a tag, as the pod took it":   {source: &rukpak.ImageSource{Reference: "registry.example/app:v1"}, unpack: &rukpak.UnpackStatus{PodName: "unpack"}, want: resolved},
		"a tag that was pulled by us": {source: &rukpak.ImageSource{Reference: "registry.example/app:v1"}, unpack: &rukpak.UnpackStatus{Mode: rukpak.UnpackModeDirect, ResolvedReference: pinned}, want: pinned},
	} {
		t.Run(name, func(t *testing.T) {
			b := &rukpak.Bundle{ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: "team"}, Spec: rukpak.BundleSpec{Source: rukpak.BundleSource{Image: test.source}}}
			b.Status.Unpack = test.unpack
			if got, err := p.resolver()(t.Context(), b); err != nil || got != test.want {
				t.Errorf("got %q, %v; want %q", got, err, test.want)
			}
		})
	}
}
