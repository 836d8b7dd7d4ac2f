// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

// unscheduledAfter is for how long a pod that no node takes holds its place alone. After that others may have the place too: the
// pod stays, so that whoever adds nodes sees it, as long as there are not too many of the kind. What is beyond gives way to those
// that wait, and comes back behind them.
const unscheduledAfter = 30 * time.Second

// unscheduled says that no node takes the pod of the running attempt, and lets others have its place.
func (w *work) unscheduled(ctx context.Context, p *corev1.Pod, o pod.Outcome) (time.Duration, error) {
	message := withPlatform(o, w.bundle.Status.Unpack.Platform)
	if left := unscheduledAfter - w.now.Sub(w.unscheduledSince(p)); left > 0 {
		return left, w.say(ctx, o.Reason, message)
	}
	if w.lends = w.places.Lend(w.name, w.now); w.lends {
		return 0, w.say(ctx, o.Reason, message)
	}
	if w.places.Wanted(w.name) {
		return w.giveWay(ctx, o.Reason, message)
	}
	return unscheduledAfter, w.say(ctx, o.Reason, message)
}

// unscheduledSince is from when on no node takes a pod. An attempt may have begun long before, and waited for its pod. What the
// clock of the scheduler says of the future is not believed.
func (w *work) unscheduledSince(p *corev1.Pod) time.Time {
	began, since := w.bundle.Status.Unpack.StartTime.Time, pod.UnscheduledSince(p)
	if since.After(began) && !since.After(w.now.Add(clocksDiffer)) {
		return since
	}
	return began
}

// giveWay ends the running attempt so that others have its place. The bundle asks for another one after the pause that follows as
// many failures as it has had, a first one if there were none, and stands behind those that wait by then.
func (w *work) giveWay(ctx context.Context, reason, message string) (time.Duration, error) {
	message += "; others had its place meanwhile"
	failures := w.bundle.Status.Unpack.Failures
	wait := w.wait(failures)
	if w.bundle.Status.Unpack.Refresh {
		wait = w.refreshWait(failures)
	}
	next := wholeSecond(w.now.Add(wait))
	err := w.save(ctx, func(s *v1alpha1.BundleStatus) {
		w.makeWay(s, reason, message, &metav1.Time{Time: next})
		if w.unpacked() || failures > w.backoffLimit() {
			return
		}
		conditions.SetProgress(&s.Conditions, w.bundle.Generation, metav1.ConditionUnknown, reason, message)
	})
	return max(next.Sub(w.now), time.Millisecond), err
}
