// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fakediscovery "k8s.io/client-go/discovery/fake"
	clienttesting "k8s.io/client-go/testing"

	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/contract"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

func TestMissingClassHeals(t *testing.T) {
	inWorld(t, started(testBundle()), func(w *world) {
		w.start()
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonClassMissing, `"plain"`)
		w.create(testClass())
		w.pass(0)
		w.onlyPod()
		if err := w.bundles.Tracker().Delete(v1alpha1.SchemeGroupVersion.WithResource("provisionerclasses"), "", "plain"); err != nil {
			t.Fatal(err)
		}
		w.pass(0)
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonClassMissing)
		if u := w.bundle().Status.Unpack; open(u) || len(w.pods()) != 0 {
			t.Errorf("attempt %+v, %d pods", u, len(w.pods()))
		}
		w.create(testClass())
		w.pass(0)
		w.onlyPod()
	})
}

func TestDefaultClassIsFilledInOnce(t *testing.T) {
	inWorld(t, started(changedBundle(func(b *v1alpha1.Bundle) { b.Spec.ProvisionerClassName = "" })), func(w *world) {
		w.start()
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonClassMissing, "no default class")
		w.create(changedClass(func(c *v1alpha1.ProvisionerClass) {
			c.Annotations = map[string]string{v1alpha1.AnnotationIsDefaultClass: "true"}
		}))
		w.pass(0)
		if got := w.bundle().Spec.ProvisionerClassName; got != "plain" {
			t.Errorf("class %q", got)
		}
		w.onlyPod()
	})
}

func TestForeignProvisionerIsLeftAlone(t *testing.T) {
	inWorld(t, started(testBundle(), changedClass(func(c *v1alpha1.ProvisionerClass) { c.Provisioner = "example.com/own" })), func(w *world) {
		w.start()
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonWaitingForProvisioner, "example.com/own")
		if got := w.bundle().Status.Provisioner; got != "example.com/own" {
			t.Errorf("provisioner %q", got)
		}
		w.edit(func(b *v1alpha1.Bundle) {
			conditions.SetProgress(&b.Status.Conditions, 1, metav1.ConditionFalse, "TheirReason", "their words")
		})
		writes := w.writes()
		w.pass(time.Hour)
		w.edit(func(b *v1alpha1.Bundle) { b.Labels = map[string]string{"a": "b"} })
		w.expect(metav1.ConditionFalse, "TheirReason")
		if w.writes() != writes || len(w.pods()) != 0 {
			t.Errorf("%d writes, %d pods", w.writes()-writes, len(w.pods()))
		}
	})
}

func TestUploadWaits(t *testing.T) {
	inWorld(t, started(testClass(), changedBundle(func(b *v1alpha1.Bundle) {
		b.Spec.Source = v1alpha1.BundleSource{Type: v1alpha1.SourceTypeUpload, Upload: &v1alpha1.UploadSource{}}
	})), func(w *world) {
		w.start()
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonWaitingForUpload)
		w.commit()
		w.pass(0)
		w.expect(metav1.ConditionTrue, v1alpha1.ReasonUnpacked)
		w.edit(func(b *v1alpha1.Bundle) { b.Annotations = map[string]string{v1alpha1.AnnotationRetry: "1"} })
		w.expect(metav1.ConditionTrue, v1alpha1.ReasonUnpacked)
		if got := w.bundle().Status.LastHandledRetry; got != "1" || len(w.pods()) != 0 {
			t.Errorf("lastHandledRetry %q, %d pods", got, len(w.pods()))
		}
		// What was lost is not what nobody has written yet.
		w.edit(func(b *v1alpha1.Bundle) {
			conditions.SetContentAvailable(&b.Status.Conditions, 1, false, v1alpha1.ReasonContentLost, "lost")
		})
		w.expect(metav1.ConditionFalse, v1alpha1.ReasonContentLost, "write the content")
		if got := w.bundle().Status.Phase; got != v1alpha1.BundleFailing {
			t.Errorf("phase %s", got)
		}
		w.commit()
		w.pass(0)
		w.expect(metav1.ConditionTrue, v1alpha1.ReasonUnpacked)
	})
}

func TestSuspendEndsTheAttempt(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		w.onlyPod()
		w.edit(func(b *v1alpha1.Bundle) { b.Spec.Suspend = true })
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonSuspended)
		if u := w.bundle().Status.Unpack; open(u) || len(w.pods()) != 0 {
			t.Errorf("attempt %+v, %d pods", u, len(w.pods()))
		}
		w.pass(time.Hour)
		if len(w.pods()) != 0 {
			t.Error("a suspended bundle got a pod")
		}
		w.edit(func(b *v1alpha1.Bundle) { b.Spec.Suspend = false })
		w.onlyPod()
	})
}

func TestLostContentComesFromThePinnedDigest(t *testing.T) {
	inWorld(t, started(testClass(), changedBundle(func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Reference = "registry.example/app:v1" })), func(w *world) {
		w.start()
		if got := pod.ResolvedReference(w.onlyPod(), "registry.example/app:v1"); got != "" {
			t.Errorf("the first attempt takes %s", got)
		}
		w.commit()
		w.pass(0)
		w.edit(func(b *v1alpha1.Bundle) {
			conditions.SetContentAvailable(&b.Status.Conditions, 1, false, v1alpha1.ReasonContentLost, "lost")
		})
		if got := pod.ResolvedReference(w.onlyPod(), "registry.example/app:v1"); got != testImage {
			t.Errorf("the second attempt takes %q", got)
		}
		w.commit()
		w.pass(0)
		w.expect(metav1.ConditionTrue, v1alpha1.ReasonUnpacked)
		if len(w.pods()) != 0 {
			t.Error("the pod is left")
		}
	})
}

func TestAutoFollowsTheVersionOfTheCluster(t *testing.T) {
	for minor, want := range map[string]v1alpha1.UnpackMode{"34": v1alpha1.UnpackModeImageCopy, "35": v1alpha1.UnpackModeImageVolume, "36+": v1alpha1.UnpackModeImageVolume} {
		t.Run(minor, func(t *testing.T) {
			inWorld(t, started(testClass(), changedBundle(func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Path = "/manifests" })), func(w *world) {
				w.kube.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion.Minor = minor
				w.start()
				if got := w.bundle().Status.Unpack.Mode; got != want {
					t.Errorf("mode %s, want %s", got, want)
				}
			})
		})
	}
}

func TestPanicIsShownOnTheBundle(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		var panicking atomic.Bool
		panicking.Store(true)
		w.config.Server = func() pod.Endpoint {
			if panicking.Load() {
				panic("out of cheese")
			}
			return pod.Endpoint{URL: "https://10.96.0.7:443"}
		}
		w.start()
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonInternalError)
		panicking.Store(false)
		w.pass(2 * longestRetry)
		w.onlyPod()
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonUnpacking)
	})
}

func TestEventsTellOfPhasesAndFailures(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		w.podSays(exited(1, `{"reason":"UploadFailed","message":"100% of nothing"}`))
		w.pass(6 * time.Second)
		w.commit()
		w.pass(time.Second)
		notes := map[string]string{}
		for _, action := range w.kube.Actions() {
			if create, ok := action.(clienttesting.CreateActionImpl); ok && action.GetResource().Resource == "events" {
				text := describeEvent(t, create.GetObject())
				notes[strings.Fields(text)[1]] += text + "\n"
			}
		}
		for reason, words := range map[string]string{
			v1alpha1.ReasonUnpacking:    "Normal Unpacking Unpacking: attempt 1 is running",
			contract.ReasonUploadFailed: "Warning UploadFailed attempt 1 failed: 100% of nothing",
			v1alpha1.ReasonUnpacked:     "Normal Unpacked Unpacked: content " + testDigest,
		} {
			if !strings.Contains(notes[reason], words) {
				t.Errorf("no event %q among %q", words, notes)
			}
		}
	})
}

func TestNewNamesWhatIsMissing(t *testing.T) {
	w := newWorld(t)
	for name, change := range map[string]func(*Config){
		"bundles": func(c *Config) { c.Bundles = nil },
		"Direct":  func(c *Config) { c.Kube = nil },
		"puller":  func(c *Config) { c.AllowDirect = true },
		"image":   func(c *Config) { c.Image = "" },
		"key":     func(c *Config) { c.Key = []byte("short") },
	} {
		config := w.config
		change(&config)
		if _, err := New(config); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func describeEvent(t *testing.T, obj runtime.Object) string {
	t.Helper()
	e, ok := obj.(*eventsv1.Event)
	if !ok {
		t.Fatalf("unexpected %T", obj)
	}
	return e.Type + " " + e.Reason + " " + e.Note
}
