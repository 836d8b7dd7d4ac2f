// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/contract"
)

// says waits until a bundle gives a reason, in a status of its condition Unpacked, with words that
// name what is wrong.
func (s *scope) says(name string, status metav1.ConditionStatus, reason string, words ...string) *v1alpha1.Bundle {
	s.Helper()
	b := s.until(name, "says "+reason, func(b *v1alpha1.Bundle) error {
		c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionUnpacked)
		if c == nil || c.Status != status || c.Reason != reason || c.ObservedGeneration != b.Generation {
			return fmt.Errorf("it says %s", said(b))
		}
		return nil
	})
	c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionUnpacked)
	for _, word := range words {
		if !strings.Contains(c.Message, word) {
			s.Errorf("bundle %s says %q, which does not name %q", name, c.Message, word)
		}
	}
	if ready := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionReady); ready == nil || ready.Reason != reason {
		s.Errorf("bundle %s: the condition Ready is %+v", name, ready)
	}
	return b
}

// bounded checks that attempts have become few: the limit of the class is exceeded by one,
// and the next attempt is a long way off.
func (s *scope) bounded(b *v1alpha1.Bundle, limit int32) {
	s.Helper()
	u := b.Status.Unpack
	if u.Failures != limit+1 {
		s.Errorf("bundle %s has failed %d attempts, its class's backoffLimit is %d", b.Name, u.Failures, limit)
	}
	if b.Status.Phase != v1alpha1.BundleFailing {
		s.Errorf("bundle %s is in phase %s", b.Name, b.Status.Phase)
	}
	if u.EndTime == nil || u.NextAttemptTime == nil || u.NextAttemptTime.Sub(u.EndTime.Time) < 10*time.Minute {
		s.Errorf("bundle %s: the attempt ended at %v and the next one begins at %v", b.Name, u.EndTime, u.NextAttemptTime)
	}
}

// impatient makes a class that gives up after its second attempt.
func (s *scope) impatient(suffix string, change func(*v1alpha1.ProvisionerClass)) string {
	s.Helper()
	return s.class(suffix, v1alpha1.ProvisionerPlain, func(c *v1alpha1.ProvisionerClass) {
		c.Unpack = &v1alpha1.UnpackPolicy{BackoffLimit: ptr.To[int32](1)}
		if change != nil {
			change(c)
		}
	})
}

// failing waits until the attempts at a bundle have failed for a reason, which it must say in
// words, and checks that no pod is left of them.
func (s *scope) failing(name, reason string, words ...string) {
	s.Helper()
	b := s.says(name, metav1.ConditionFalse, reason, words...)
	s.bounded(b, 1)
	s.noPods()
	s.warned(name, reason)
}

// warned waits for the event that tells of a failed attempt.
func (s *scope) warned(name, reason string) {
	s.Helper()
	s.eventually("an event tells of "+reason, func() error {
		list, err := s.kube.CoreV1().Events(s.ns).List(s.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Type == corev1.EventTypeWarning && e.Reason == reason {
				return nil
			}
		}
		return fmt.Errorf("none of the %d events does", len(list.Items))
	})
}

// TestImageDoesNotExist is one failure to its end, and back. That each cause is told is for TestReasons.
func TestImageDoesNotExist(t *testing.T) {
	t.Parallel()
	s := begin(t)
	reference := s.reference(nodeRegistry, "nowhere")
	s.bundle("app", s.impatient("fast", nil), reference)
	s.failing("app", v1alpha1.ReasonImageNotFound, reference, "not found")
	tree := small(s.ns)
	s.push("nowhere", tree)
	s.askRetry("app", "now")
	b := s.unpacked("app")
	if b.Status.LastHandledRetry != "now" {
		t.Errorf("lastHandledRetry is %q", b.Status.LastHandledRetry)
	}
	s.holds(b, tree)
}

// stalled waits until nothing is tried any more, for a reason that is said in words.
func (s *scope) stalled(name, reason string, words ...string) {
	s.Helper()
	b := s.says(name, metav1.ConditionFalse, reason, words...)
	c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionStalled)
	if c == nil || c.Status != metav1.ConditionTrue || c.Reason != reason || !strings.Contains(c.Message, v1alpha1.AnnotationRetry) {
		s.Errorf("bundle %s: the condition Stalled is %+v", name, c)
	}
	if u := b.Status.Unpack; u.Attempt != 1 || u.NextAttemptTime != nil {
		s.Errorf("bundle %s: attempt %d, the next one at %v", name, u.Attempt, u.NextAttemptTime)
	}
	s.noPods()
}

func TestContentIsRefused(t *testing.T) {
	t.Parallel()
	s := begin(t)
	bad, _ := s.push("bad", files{"manifests/fine.yaml": manifest("fine", "x"), "manifests/bad.yaml": "kind: ConfigMap\nmetadata: {name: no-version}\n"})
	empty, _ := s.push("empty", files{"other/file": "x"})
	tree := small(s.ns)
	good, _ := s.push("good", tree)
	// One after the other: two that wait together share a pod, and each that is refused there goes on alone, in a second attempt.
	s.bundle("bad", "plain", bad)
	s.stalled("bad", contract.ReasonContentRefused, "manifests/bad.yaml", "apiVersion")
	s.bundle("empty", "plain", empty)
	s.stalled("empty", contract.ReasonContentRefused, "no Kubernetes manifest", "manifests/")
	s.update("bad", func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Reference = good })
	s.holds(s.unpacked("bad"), tree)
}

func TestClassIsMissing(t *testing.T) {
	t.Parallel()
	s := begin(t)
	tree := small(s.ns)
	digest, _ := s.push("v1", tree)
	name := s.ns + "-later"
	s.bundle("app", name, digest)
	b := s.says("app", metav1.ConditionUnknown, v1alpha1.ReasonClassMissing, name)
	if b.Status.Phase != v1alpha1.BundlePending {
		t.Errorf("the phase is %s", b.Status.Phase)
	}
	if made := s.class("later", v1alpha1.ProvisionerPlain, nil); made != name {
		t.Fatalf("made class %s", made)
	}
	s.holds(s.unpacked("app"), tree)
}

func TestSuspended(t *testing.T) {
	t.Parallel()
	s := begin(t)
	tree := small(s.ns)
	digest, _ := s.push("v1", tree)
	s.bundle("app", "plain", digest, func(b *v1alpha1.Bundle) { b.Spec.Suspend = true })
	b := s.says("app", metav1.ConditionUnknown, v1alpha1.ReasonSuspended, "suspend")
	if b.Status.Unpack != nil {
		t.Errorf("an attempt was made: %+v", b.Status.Unpack)
	}
	s.update("app", func(b *v1alpha1.Bundle) { b.Spec.Suspend = false })
	b = s.unpacked("app")
	s.holds(b, tree)
	s.update("app", func(b *v1alpha1.Bundle) { b.Spec.Suspend = true })
	s.holds(b, tree) // what is there goes on being served
}
