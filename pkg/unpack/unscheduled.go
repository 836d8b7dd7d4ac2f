// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"
	"time"

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
func (w *work) unscheduled(ctx context.Context, o pod.Outcome) (time.Duration, error) {
	u := w.bundle.Status.Unpack
	message := withPlatform(o, u.Platform)
	if left := unscheduledAfter - w.now.Sub(u.StartTime.Time); left > 0 {
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

// giveWay ends the running attempt, which counts as no failure, so that others have its place. The bundle asks for another one
// after the pause that follows a first failure, and stands behind those that wait by then.
func (w *work) giveWay(ctx context.Context, reason, message string) (time.Duration, error) {
	message += "; others had its place meanwhile"
	next := wholeSecond(w.now.Add(w.Backoff.Base))
	err := w.save(ctx, func(s *v1alpha1.BundleStatus) {
		s.Unpack.EndTime, s.Unpack.NextAttemptTime = &metav1.Time{Time: w.now}, &metav1.Time{Time: next}
		s.Unpack.Reason, s.Unpack.Message = reason, message
		if s.Unpack.Refresh && s.Refresh != nil {
			s.Refresh.NextTime = s.Unpack.NextAttemptTime
		}
		if w.unpacked() || s.Unpack.Failures > w.backoffLimit() {
			return
		}
		conditions.SetProgress(&s.Conditions, w.bundle.Generation, metav1.ConditionUnknown, reason, message)
	})
	return max(next.Sub(w.now), time.Millisecond), err
}

// gaveWay tells whether an attempt has ended so that others have its place.
func gaveWay(u *v1alpha1.UnpackStatus) bool {
	return u != nil && u.EndTime != nil && u.Reason == v1alpha1.ReasonUnschedulable && u.NextAttemptTime != nil
}
