// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: t.Events})
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
	told := false
	if !open(u) && u != nil && (old == nil || old.Nonce != u.Nonce || open(old)) && u.EndTime != nil {
		told = t.ended(old, now)
	}
	t.refreshEvent(before, now)
	switch {
	case before.Status.Phase != now.Status.Phase && now.Status.Phase != "":
		t.phaseEvent(now)
	case !told:
		t.reasonEvent(before, now)
	}
}

// ended tells of an attempt whose end has just been written, and whether it did so in an event.
func (t *term) ended(old *v1alpha1.UnpackStatus, b *v1alpha1.Bundle) bool {
	u := b.Status.Unpack
	failedBefore := int32(0)
	if old != nil && old.Generation == u.Generation {
		failedBefore = old.Failures
	}
	switch {
	// What a refresh was to replace is unpacked still when it has failed.
	case u.Failures > failedBefore || u.Failures > 0 && (old == nil || old.Nonce != u.Nonce):
		t.finished(b, u, resultFailed, u.Reason, u.EndTime.Time)
		t.event(b, corev1.EventTypeWarning, u.Reason, fmt.Sprintf("attempt %d failed: %s", u.Attempt, u.Message))
		return true
	case u.Reason == "" && meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionUnpacked):
		t.finished(b, u, resultSucceeded, "", time.Now())
		if u.Mode == v1alpha1.UnpackModeDirect {
			t.fares(b.Namespace)
		}
	default:
		t.finished(b, u, resultCancelled, u.Reason, u.EndTime.Time)
	}
	return false
}

// refreshEvent tells of looks that have failed, and of what a refresh has brought: neither changes the phase.
func (t *term) refreshEvent(before, b *v1alpha1.Bundle) {
	was, is := before.Status.Content, b.Status.Content
	if was != nil && is != nil && was.Digest != is.Digest && was.Generation == is.Generation {
		t.event(b, corev1.EventTypeNormal, v1alpha1.ReasonRefreshed, fmt.Sprintf("content %s, %d bytes, %d files", is.Digest, is.Size, is.Files))
	}
	old := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionRefreshed)
	c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionRefreshed)
	if c == nil || c.Status != metav1.ConditionFalse || old != nil && old.Status == c.Status && old.Reason == c.Reason {
		return
	}
	if u, before := b.Status.Unpack, before.Status.Unpack; open(before) && !open(u) {
		return // the end of the attempt has its own event
	}
	t.event(b, corev1.EventTypeWarning, c.Reason, "refresh failed: "+c.Message)
}

// phaseEvent tells of a new phase, in the words of the condition Ready: unlike Unpacked it speaks of
// content that was lost, too.
func (t *term) phaseEvent(b *v1alpha1.Bundle) {
	c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionReady)
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

// reasonEvent tells of a new reason within a phase: what a bundle waits for, or that the pod of an attempt
// does not get on. That an attempt begins is no news.
func (t *term) reasonEvent(before, now *v1alpha1.Bundle) {
	c := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionUnpacked)
	old := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionUnpacked)
	if c == nil || old != nil && old.Reason == c.Reason {
		return
	}
	kind := corev1.EventTypeWarning
	switch c.Reason {
	case v1alpha1.ReasonPending, v1alpha1.ReasonUnpacking, v1alpha1.ReasonUnpacked:
		return
	case v1alpha1.ReasonSuspended, v1alpha1.ReasonWaitingForUpload, v1alpha1.ReasonWaitingForProvisioner, v1alpha1.ReasonQueued, v1alpha1.ReasonImagePullThrottled:
		kind = corev1.EventTypeNormal
	}
	t.event(now, kind, c.Reason, fmt.Sprintf("%s: %s", now.Status.Phase, c.Message))
}

// event records an event. The note is an argument, since it may hold percent signs.
func (t *term) event(b *v1alpha1.Bundle, kind, reason, note string) {
	if t.recorder != nil {
		t.recorder.Eventf(b, nil, kind, reason, "Unpack", "%s", note)
	}
}
