// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/platform"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

// onNodes makes a class whose pods run on nodes of one architecture.
func onNodes(arch string) *v1alpha1.ProvisionerClass {
	return changedClass(func(c *v1alpha1.ProvisionerClass) {
		c.Unpack.PodTemplate = &v1alpha1.UnpackPodTemplate{NodeSelector: map[string]string{corev1.LabelArchStable: arch}}
	})
}

func TestPlatformOfPods(t *testing.T) {
	had := func(platform string, generation int64) func(*v1alpha1.Bundle) {
		return func(b *v1alpha1.Bundle) {
			b.Status.Content = &v1alpha1.ContentStatus{Digest: testDigest, Generation: generation}
			b.Status.ResolvedSource = &v1alpha1.ResolvedSource{Type: v1alpha1.SourceTypeImage, Image: &v1alpha1.ResolvedImage{Reference: testImage, Platform: platform}}
		}
	}
	asks := func(platform string) func(*v1alpha1.Bundle) {
		return func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Platform = platform }
	}
	for name, test := range map[string]struct {
		class   *v1alpha1.ProvisionerClass
		changes []func(*v1alpha1.Bundle)
		want    string // platform
		refused string // a word of it
	}{
		"the server's":                          {want: "linux/s390x"},
		"the bundle's":                          {changes: []func(*v1alpha1.Bundle){asks("linux/arm64")}, want: "linux/arm64"},
		"the class's":                           {class: onNodes("ppc64le"), want: "linux/ppc64le"},
		"both the same":                         {class: onNodes("arm64"), changes: []func(*v1alpha1.Bundle){asks("linux/arm64")}, want: "linux/arm64"},
		"both, and they differ":                 {class: onNodes("amd64"), changes: []func(*v1alpha1.Bundle){asks("linux/arm64")}, refused: "nodes of linux/amd64 alone"},
		"a variant":                             {changes: []func(*v1alpha1.Bundle){asks("linux/arm/v7")}, refused: "the node chooses the variant"},
		"that of the content":                   {changes: []func(*v1alpha1.Bundle){had("linux/arm64", 1)}, want: "linux/arm64"},
		"that of the content of another spec":   {changes: []func(*v1alpha1.Bundle){had("linux/arm64", 0)}, want: "linux/s390x"},
		"that of content from before there was": {changes: []func(*v1alpha1.Bundle){had("", 1)}, want: "linux/s390x"},
		"the bundle's before the content's":     {changes: []func(*v1alpha1.Bundle){had("linux/arm64", 1), asks("linux/amd64")}, want: "linux/amd64"},
		"the class's before the content's":      {class: onNodes("amd64"), changes: []func(*v1alpha1.Bundle){had("linux/arm64", 1)}, want: "linux/amd64"},
		"no architecture":                       {class: onNodes("x86_64"), refused: "called amd64"},
	} {
		t.Run(name, func(t *testing.T) {
			class := test.class
			if class == nil {
				class = testClass()
			}
			b := testBundle()
			for _, change := range test.changes {
				change(b)
			}
			inWorld(t, started(class, b), func(w *world) {
				w.config.Platform = platform.Platform{OS: "linux", Architecture: "s390x"}
				w.start()
				if test.refused != "" {
					w.expect(metav1.ConditionFalse, v1alpha1.ReasonPlatformNotAllowed, test.refused)
					if !w.stalled() || len(w.pods()) > 0 {
						t.Errorf("stalled: %v, %d pods", w.stalled(), len(w.pods()))
					}
					return
				}
				arch := w.onlyPod().Spec.NodeSelector[corev1.LabelArchStable]
				if got := w.bundle().Status.Unpack.Platform; got != test.want || "linux/"+arch != test.want {
					t.Errorf("the attempt is for %s, its pod for nodes of %s, want %s", got, arch, test.want)
				}
			})
		})
	}
}

func TestUnschedulableNamesThePlatform(t *testing.T) {
	inWorld(t, started(testClass(), changedBundle(func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Platform = "linux/arm64" })), func(w *world) {
		w.start()
		says := func(message string) {
			w.podSays(corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: message}}})
		}
		says("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.")
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonUnschedulable, "node affinity/selector", "linux/arm64")
		says("0/1 nodes are available: 1 Insufficient memory.")
		if got := w.bundle().Status.Unpack.Message; strings.Contains(got, "arm64") {
			t.Errorf("%q names the platform, which is not at fault", got)
		}
	})
}

func TestUnschedulableLookNamesThePlatform(t *testing.T) {
	asks := func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Platform = "linux/arm64" }
	inWorld(t, started(testClass(), taggedBundle(asks)), func(w *world) {
		w.start()
		w.ask("1")
		w.pass(time.Second)
		w.podSays(corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "1 node(s) didn't match Pod's node affinity/selector.",
		}}})
		w.pass(pod.Timeout(testClass()) + time.Second)
		w.refreshed(metav1.ConditionFalse, v1alpha1.ReasonUnschedulable, "node affinity/selector", "linux/arm64")
	})
}

func TestPlatformInModeDirect(t *testing.T) {
	for name, test := range map[string]struct{ asks, want string }{
		"the server's":             {"", "linux/s390x"},
		"the bundle's":             {"linux/arm/v7", "linux/arm/v7"},
		"whatever the class's are": {"linux/arm64", "linux/arm64"},
	} {
		t.Run(name, func(t *testing.T) {
			b := changedBundle(func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Platform = test.asks })
			inWorld(t, started(onNodes("amd64"), b), func(w *world) {
				p := &puller{content: "the content"}
				standalone(w, p)
				w.config.Platform = platform.Platform{OS: "linux", Architecture: "s390x"}
				w.start()
				w.pass(time.Second)
				w.expect(metav1.ConditionTrue, v1alpha1.ReasonUnpacked)
				p.mu.Lock()
				defer p.mu.Unlock()
				if p.platform.String() != test.want || w.bundle().Status.Unpack.Platform != test.want {
					t.Errorf("pulled for %s, recorded is %s, want %s", p.platform, w.bundle().Status.Unpack.Platform, test.want)
				}
			})
		})
	}
}
