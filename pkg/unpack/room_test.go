// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

func storageFull(b *v1alpha1.Bundle) bool {
	return meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionStorageFull)
}

// setFull does what the server does when it refuses content, and when there is room again.
func (w *world) setFull(full bool) {
	w.edit(func(b *v1alpha1.Bundle) { conditions.SetStorageFull(&b.Status.Conditions, b.Generation, full) })
}

// An attempt whose content was refused for want of room ends, is no failure, and is followed by another as soon as there is room.
func TestRefusedForWantOfRoomWaits(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		w.start()
		w.onlyPod()
		w.setFull(true)
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonStorageFull, "room")
		b := w.bundle()
		if u := b.Status.Unpack; open(u) || u.Failures != 0 || u.NextAttemptTime != nil || len(w.pods()) != 0 {
			t.Errorf("attempt %+v, %d pods", u, len(w.pods()))
		}
		if b.Status.Phase != v1alpha1.BundlePending || w.stalled() {
			t.Errorf("phase %s, stalled %v", b.Status.Phase, w.stalled())
		}
		writes := w.writes()
		w.pass(24 * time.Hour)
		if w.writes() != writes || len(w.pods()) != 0 {
			t.Errorf("while it waits: %d writes, %d pods", w.writes()-writes, len(w.pods()))
		}
		w.setFull(false)
		w.onlyPod()
		w.commit()
		w.pass(0)
		w.expect(metav1.ConditionTrue, v1alpha1.ReasonUnpacked)
	})
}

// Where there is no room no pod is made.
func TestNewWorkWaitsForRoom(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		var full atomic.Bool
		full.Store(true)
		w.config.Room = func(_ context.Context, store string) error {
			if full.Load() && store == testClass().Store {
				return errors.New("full")
			}
			return nil
		}
		w.start()
		w.expect(metav1.ConditionUnknown, v1alpha1.ReasonStorageFull)
		if !storageFull(w.bundle()) || len(w.pods()) != 0 {
			t.Errorf("StorageFull is %v, %d pods", storageFull(w.bundle()), len(w.pods()))
		}
		full.Store(false)
		w.setFull(false)
		w.onlyPod()
		// What is running already is not ended by it.
		full.Store(true)
		w.edit(func(b *v1alpha1.Bundle) { b.Labels = map[string]string{"a": "b"} })
		w.onlyPod()
		w.commit()
		w.pass(0)
		// Lost content comes back when there is room, and who asks to try is heard then.
		w.edit(func(b *v1alpha1.Bundle) {
			b.Annotations = map[string]string{v1alpha1.AnnotationRetry: "1"}
			conditions.SetContentAvailable(&b.Status.Conditions, 1, false, v1alpha1.ReasonContentLost, "lost")
		})
		if b := w.bundle(); b.Status.LastHandledRetry != "" || len(w.pods()) != 0 {
			t.Errorf("lastHandledRetry %q, %d pods", b.Status.LastHandledRetry, len(w.pods()))
		}
		full.Store(false)
		w.setFull(false)
		w.onlyPod()
		if b := w.bundle(); b.Status.LastHandledRetry != "1" {
			t.Errorf("lastHandledRetry %q", b.Status.LastHandledRetry)
		}
	})
}
