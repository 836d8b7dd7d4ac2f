// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/generated/clientset/versioned/scheme"
)

// eventSource is the reporting controller of events.
const eventSource = "rukpak.io/rukpak-apiserver"

// startRecording makes the recorder of events. They go to the cluster; without one
// there are none.
func (t *term) startRecording(ctx context.Context) (stop func(), err error) {
	if t.Kube == nil {
		return func() {}, nil
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: t.Kube.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	t.recorder = broadcaster.NewRecorder(scheme.Scheme, eventSource)
	return broadcaster.Shutdown, nil
}

// observe tells events and metrics what has changed between two states of a bundle. It
// sees what this process did and what the server did when it committed content alike.
func (t *term) observe(before, now *v1alpha1.Bundle) {
	old, u := before.Status.Unpack, now.Status.Unpack
	if open(old) && (u == nil || u.Nonce != old.Nonce) {
		t.finished(now, old, resultCancelled, "Superseded", time.Now())
	}
	if !open(u) && u != nil && (old == nil || old.Nonce != u.Nonce || open(old)) && u.EndTime != nil {
		t.ended(old, now)
	}
	if before.Status.Phase != now.Status.Phase && now.Status.Phase != "" {
		t.phaseEvent(now)
	}
}

// ended tells of an attempt whose end has just been written.
func (t *term) ended(old *v1alpha1.UnpackStatus, b *v1alpha1.Bundle) {
	u := b.Status.Unpack
	failedBefore := int32(0)
	if old != nil && old.Generation == u.Generation {
		failedBefore = old.Failures
	}
	switch {
	case meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionUnpacked):
		t.finished(b, u, resultSucceeded, "", time.Now())
	case u.Failures > failedBefore || u.Failures > 0 && (old == nil || old.Nonce != u.Nonce):
		t.finished(b, u, resultFailed, u.Reason, u.EndTime.Time)
		t.event(b, corev1.EventTypeWarning, u.Reason, fmt.Sprintf("attempt %d failed: %s", u.Attempt, u.Message))
	default:
		t.finished(b, u, resultCancelled, u.Reason, u.EndTime.Time)
	}
}

func (t *term) phaseEvent(b *v1alpha1.Bundle) {
	c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionUnpacked)
	if c == nil {
		return
	}
	kind, note := corev1.EventTypeNormal, c.Message
	switch b.Status.Phase {
	case v1alpha1.BundleFailing:
		kind = corev1.EventTypeWarning
	case v1alpha1.BundleUnpacked:
		if content := b.Status.Content; content != nil {
			note = fmt.Sprintf("content %s, %d bytes, %d files", content.Digest, content.Size, content.Files)
		}
	}
	t.event(b, kind, c.Reason, fmt.Sprintf("%s: %s", b.Status.Phase, note))
}

// event records an event. The note is an argument, since it may hold percent signs.
func (t *term) event(b *v1alpha1.Bundle, kind, reason, note string) {
	if t.recorder != nil {
		t.recorder.Eventf(b, nil, kind, reason, "Unpack", "%s", note)
	}
}
