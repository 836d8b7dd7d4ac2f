// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

// lose says of the content that its bytes are gone, as the server does.
func lose(b *v1alpha1.Bundle) {
	conditions.SetContentAvailable(&b.Status.Conditions, b.Generation, false, v1alpha1.ReasonContentLost, "lost")
}

// TestLostContentComesBackAsItWas has a tag move before the content is lost: what is taken then is what was pinned,
// whatever somebody edits or retries, until he asks for what there is now.
func TestLostContentComesBackAsItWas(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*world)
		want   string // the image that the attempt names; "" for the tag
	}{
		"by itself": {change: func(*world) {}, want: testImage},
		"retried": {change: func(w *world) {
			w.edit(func(b *v1alpha1.Bundle) { b.Annotations = map[string]string{v1alpha1.AnnotationRetry: "1"} })
		}, want: testImage},
		"edited in something else": {change: func(w *world) {
			w.follow(func(b *v1alpha1.Bundle) { b.Spec.ServiceAccountName = "other" })
		}, want: testImage},
		"after a restart": {change: func(w *world) { w.stop(); w.start() }, want: testImage},
		"refreshed": {change: func(w *world) {
			w.podSays(waiting("ErrImagePull", "not found"))
			w.pass(21 * time.Second)
			w.ask("1")
		}},
		"refreshed, and retried": {change: func(w *world) {
			w.podSays(exited(1, ""))
			w.ask("1")
			w.podSays(exited(1, ""))
			w.edit(func(b *v1alpha1.Bundle) { b.Annotations[v1alpha1.AnnotationRetry] = "1" })
		}},
		"another source": {change: func(w *world) {
			w.edit(func(b *v1alpha1.Bundle) { b.Spec.Source.Image.Path = "/other" })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, started(testClass(), taggedBundle(lose)), func(w *world) {
				w.start()
				w.onlyPod()
				test.change(w)
				p, u := w.onlyPod(), w.bundle().Status.Unpack
				if got := pod.ResolvedReference(p, tagged); got != test.want || u.PodUID != p.UID {
					t.Errorf("the attempt %+v takes %q, want %q", u, got, test.want)
				}
			})
		})
	}
}

// TestLossIsSaidWithItsReason has the pinned image be gone from the registry.
func TestLossIsSaidWithItsReason(t *testing.T) {
	inWorld(t, started(testClass(), taggedBundle(lose)), func(w *world) {
		w.start()
		for range 3 {
			w.podSays(waiting("ErrImagePull", "app@x: not found"))
			w.pass(41 * time.Second)
		}
		w.expect(metav1.ConditionFalse, v1alpha1.ReasonImageNotFound, testImage+" alone", v1alpha1.AnnotationRefresh)
		b := w.bundle()
		c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionContentAvailable)
		if c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonContentLost || b.Status.Phase != v1alpha1.BundleFailing {
			t.Errorf("phase %s, ContentAvailable %+v", b.Status.Phase, c)
		}
		w.ask("1")
		if got := pod.ResolvedReference(w.onlyPod(), tagged); got != "" {
			t.Errorf("the refresh takes %q", got)
		}
		if u := w.bundle().Status; !u.Unpack.Refresh || u.LastHandledRefresh != "1" {
			t.Errorf("status %+v", u)
		}
		w.commit()
		w.pass(0)
		w.served()
	})
}

// TestIntervalFollowsTheTagWhenContentIsLost: who has a tag followed has said that he wants what it names.
func TestIntervalFollowsTheTagWhenContentIsLost(t *testing.T) {
	inWorld(t, started(testClass(), taggedBundle(lose, every(time.Hour))), func(w *world) {
		w.start()
		if got := pod.ResolvedReference(w.onlyPod(), tagged); got != testImage {
			t.Errorf("at first %q is tried", got)
		}
		for range 90 {
			if len(w.pods()) > 0 {
				w.podSays(exited(1, ""))
			}
			w.pass(time.Minute)
			if w.bundle().Status.Unpack.Refresh {
				break
			}
		}
		if u := w.bundle().Status.Unpack; !u.Refresh || pod.ResolvedReference(w.onlyPod(), tagged) != "" {
			t.Errorf("attempt %+v", u)
		}
	})
}

// TestClassMadeAnewForAnotherProvisioner has another provisioner look at content that only the one before has seen.
func TestClassMadeAnewForAnotherProvisioner(t *testing.T) {
	upload := func(b *v1alpha1.Bundle) {
		b.Spec.Source = v1alpha1.BundleSource{Type: v1alpha1.SourceTypeUpload, Upload: &v1alpha1.UploadSource{}}
	}
	for name, test := range map[string]struct {
		change      func(*v1alpha1.Bundle)
		provisioner string
		reason      string // of Unpacked, which is Unknown; "" if nothing happens
		pod         bool
	}{
		"the same":                  {change: func(*v1alpha1.Bundle) {}, provisioner: v1alpha1.ProvisionerPlain},
		"another of the server's":   {change: func(*v1alpha1.Bundle) {}, provisioner: v1alpha1.ProvisionerRaw, reason: v1alpha1.ReasonUnpacking, pod: true},
		"somebody else's":           {change: func(*v1alpha1.Bundle) {}, provisioner: "example.com/own", reason: v1alpha1.ReasonWaitingForProvisioner},
		"another, of an upload":     {change: upload, provisioner: v1alpha1.ProvisionerRaw, reason: v1alpha1.ReasonWaitingForUpload},
		"another, while suspended":  {change: func(b *v1alpha1.Bundle) { b.Spec.Suspend = true }, provisioner: v1alpha1.ProvisionerRaw, reason: v1alpha1.ReasonSuspended},
		"one after somebody else's": {change: func(b *v1alpha1.Bundle) { b.Status.Provisioner = "example.com/own" }, provisioner: v1alpha1.ProvisionerPlain, reason: v1alpha1.ReasonUnpacking, pod: true},
	} {
		t.Run(name, func(t *testing.T) {
			class := changedClass(func(c *v1alpha1.ProvisionerClass) { c.UID, c.Provisioner = "anew", test.provisioner })
			inWorld(t, started(taggedBundle(test.change)), func(w *world) {
				w.start()
				if w.writes() != 0 {
					t.Errorf("%d writes without a class", w.writes())
				}
				w.create(class)
				w.pass(0)
				if test.reason == "" {
					w.served()
					if w.writes() != 0 {
						t.Errorf("%d writes", w.writes())
					}
					return
				}
				w.expect(metav1.ConditionUnknown, test.reason)
				b := w.bundle()
				if !meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionContentAvailable) || b.Status.Provisioner != test.provisioner {
					t.Errorf("provisioner %s, %+v", b.Status.Provisioner, b.Status.Conditions)
				}
				if (len(w.pods()) == 1) != test.pod {
					t.Fatalf("%d pods", len(w.pods()))
				}
				if !test.pod {
					return
				}
				// What was found for the tag stays so.
				if got := pod.ResolvedReference(w.onlyPod(), tagged); got != testImage {
					t.Errorf("the attempt takes %q", got)
				}
				w.commit()
				w.pass(0)
				w.served()
			})
		})
	}
}

// TestWordsOfOthersDoNotCutAWaitShort: a change of what is not the server's own brings no attempt.
func TestWordsOfOthersDoNotCutAWaitShort(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		w.podSays(exited(1, ""))
		for i := range 9 {
			w.pass(500 * time.Millisecond)
			w.edit(func(b *v1alpha1.Bundle) {
				meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: "Theirs", Status: metav1.ConditionTrue, Reason: "R", Message: string(rune('a' + i))})
			})
			if u := w.bundle().Status.Unpack; u.Attempt != 1 || len(w.pods()) != 0 {
				t.Fatalf("attempt %+v, %d pods", u, len(w.pods()))
			}
		}
		w.pass(2 * time.Second)
		w.onlyPod()
	})
}

// TestLossAfterAFailedRefresh loses content whose refresh had failed: what comes back is what was lost.
func TestLossAfterAFailedRefresh(t *testing.T) {
	inWorld(t, started(testClass(), taggedBundle()), func(w *world) {
		w.start()
		w.ask("1")
		w.podSays(found("registry.example/app@" + otherDigest))
		w.podSays(exited(1, `{"reason":"LimitExceeded","message":"too large"}`))
		w.pass(time.Hour)
		w.edit(func(b *v1alpha1.Bundle) { lose(b) })
		w.pass(0)
		if got := pod.ResolvedReference(w.onlyPod(), tagged); got != testImage {
			t.Errorf("restored from %q, not from %s", got, testImage)
		}
	})
}
