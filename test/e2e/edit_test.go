// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// door is a class whose pods a node takes only while it is open, which it is not at first.
func (s *scope) door(suffix string) (class string, open func(bool)) {
	s.Helper()
	label := "e2e.rukpak.io/" + s.ns + "-" + suffix
	class = s.class(suffix, v1alpha1.ProvisionerPlain, func(c *v1alpha1.ProvisionerClass) {
		c.Unpack = &v1alpha1.UnpackPolicy{PodTemplate: &v1alpha1.UnpackPodTemplate{NodeSelector: map[string]string{label: "open"}}}
	})
	s.Cleanup(func() {
		s, cancel := s.afterwards()
		defer cancel()
		s.labelNode(label, "null")
	})
	return class, func(yes bool) {
		s.Helper()
		value := "null"
		if yes {
			value = `"open"`
		}
		s.labelNode(label, value)
	}
}

// labelNode sets a label of the node to a value in JSON, where null takes it away.
func (s *scope) labelNode(label, value string) {
	s.Helper()
	nodes, err := s.kube.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{})
	s.must(err)
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, label, value)
	_, err = s.kube.CoreV1().Nodes().Patch(s.ctx, nodes.Items[0].Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	s.must(err)
}

// TestNewImage changes the image of a bundle: what was served is served until the new content is
// whole, and by its digest afterwards.
func TestNewImage(t *testing.T) {
	t.Parallel()
	s := begin(t)
	old, next := small(s.ns+" old"), small(s.ns+" new")
	first, _ := s.push("v1", old)
	second, _ := s.push("v2", next)
	class, open := s.door("door")
	open(true)
	s.bundle("app", class, first)
	before := s.unpacked("app")
	s.holds(before, old)

	open(false)
	s.update("app", func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Reference = second })
	during := s.says("app", metav1.ConditionUnknown, v1alpha1.ReasonUnschedulable)
	if !meta.IsStatusConditionTrue(during.Status.Conditions, v1alpha1.ConditionContentAvailable) {
		t.Error("while the new image is unpacked ContentAvailable is not True")
	}
	if c := during.Status.Content; c == nil || c.Digest != before.Status.Content.Digest || c.Generation != 1 {
		t.Errorf("while the new image is unpacked status.content is %+v", c)
	}
	s.holds(during, old)

	open(true)
	after := s.unpacked("app")
	s.holds(after, next)
	if len(after.Status.History) != 1 || after.Status.History[0].Digest != before.Status.Content.Digest {
		t.Errorf("the history is %+v, want %s", after.Status.History, before.Status.Content.Digest)
	}
	data, err := s.read("app", before.Status.Content.Digest)
	s.must(err)
	compare(t, "app, the earlier content", data, old)
	if r := after.Status.ResolvedSource; r == nil || r.Image.Reference != second {
		t.Errorf("resolvedSource is %+v, want %s", r, second)
	}
}

// TestNewImageFails names an image that there is not: what was served goes on being served.
func TestNewImageFails(t *testing.T) {
	t.Parallel()
	s := begin(t)
	tree := small(s.ns)
	first, _ := s.push("v1", tree)
	class := s.class("once", v1alpha1.ProvisionerPlain, func(c *v1alpha1.ProvisionerClass) {
		c.Unpack = &v1alpha1.UnpackPolicy{BackoffLimit: ptr.To[int32](0)}
	})
	s.bundle("app", class, first)
	before := s.unpacked("app")
	s.update("app", func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Reference = s.reference(nodeRegistry, "nowhere") })
	b := s.says("app", metav1.ConditionFalse, v1alpha1.ReasonImageNotFound)
	s.bounded(b, 0)
	if !meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionContentAvailable) || b.Status.Content.Digest != before.Status.Content.Digest {
		t.Errorf("the earlier content is not served: %+v, %+v", b.Status.Content, b.Status.Conditions)
	}
	s.holds(b, tree)
	s.update("app", func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Reference = first })
	s.holds(s.unpacked("app"), tree)
}

// TestDelete deletes bundles, one with content and one that is being unpacked, by themselves and
// with their namespace.
func TestDelete(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		delete func(s *scope, bundles ...string)
	}{
		{"one by one", func(s *scope, bundles ...string) {
			for _, name := range bundles {
				s.must(s.retry(func() error { return s.api().Delete(s.ctx, name, metav1.DeleteOptions{}) }))
				s.eventually("bundle "+name+" is gone", func() error { return gone(s.api().Get(s.ctx, name, metav1.GetOptions{})) })
			}
		}},
		{"with their namespace", func(s *scope, _ ...string) {
			s.must(s.kube.CoreV1().Namespaces().Delete(s.ctx, s.ns, metav1.DeleteOptions{}))
			s.eventually("the namespace is gone", func() error {
				return gone(s.kube.CoreV1().Namespaces().Get(s.ctx, s.ns, metav1.GetOptions{}))
			})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := begin(t)
			tree := small(s.ns)
			digest, _ := s.push("v1", tree)
			s.bundle("served", "plain", digest)
			served := s.unpacked("served")
			class, _ := s.door("shut")
			_, pod := s.waiting("unpacking", class)
			c.delete(s, "served", "unpacking")
			s.eventually("the unpack pod is gone", func() error {
				return gone(s.kube.CoreV1().Pods(s.ns).Get(s.ctx, pod.Name, metav1.GetOptions{}))
			})
			if _, err := s.read("served", ""); !apierrors.IsNotFound(err) {
				t.Errorf("the content of a bundle that is gone is answered with %v", err)
			}
			s.collected(served.Status.Content.Digest)
		})
	}
}

// gone is an error unless an object was not found.
func gone[T *corev1.Pod | *corev1.Namespace | *v1alpha1.Bundle](_ T, err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		return fmt.Errorf("it is still there")
	}
	return err
}
