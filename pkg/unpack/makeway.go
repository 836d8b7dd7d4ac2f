// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"cmp"
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/pod"
	"rukpak.io/apiserver/pkg/unpack/queue"
)

// A pod is there for as long as an attempt that names it runs. So that there are no more pods than places, no attempt runs of a
// bundle that waits for a place: it makes way, which is no failure.

// makeWay writes into a status that the running attempt has ended so that others have its place. Next is when the bundle asks for
// another one, or nil for at once.
func (w *work) makeWay(s *v1alpha1.BundleStatus, reason, message string, next *metav1.Time) {
	u := s.Unpack
	u.EndTime, u.NextAttemptTime = &metav1.Time{Time: w.now}, next
	u.Reason, u.Message = reason, message
	if u.Refresh && s.Refresh != nil {
		s.Refresh.NextTime = cmp.Or(next, u.EndTime)
	}
}

// standBack ends the running attempt of a bundle that has left its place and has to wait for another one. Who gathers with others,
// or waits for kubelets alone, comes in a moment, and is spared it.
func (w *work) standBack(ctx context.Context, turn queue.Turn, reason, message string) (time.Duration, error) {
	w.waits = true
	position, of := w.places.Position(w.name)
	switch left := quietWait - turn.Waited; {
	case position == 0: // another one takes it along
		return turn.Again, nil
	case left > 0 && (turn.Again > 0 || turn.Soon):
		return sooner(turn.Again, left), nil
	}
	err := w.save(ctx, func(s *v1alpha1.BundleStatus) {
		w.makeWay(s, reason, message, nil)
		if w.saysQueued(s.Unpack) {
			conditions.SetProgress(&s.Conditions, w.bundle.Generation, metav1.ConditionUnknown, v1alpha1.ReasonQueued,
				w.turnOf(position, of)+w.lastWords(s.Unpack))
		}
	})
	if err == nil {
		w.told.set(w.name, w.now)
	}
	return sooner(turn.Again, tellEvery), err
}

// gaveWay tells whether an attempt has ended since no node took its pod.
func gaveWay(u *v1alpha1.UnpackStatus) bool {
	return u != nil && u.EndTime != nil && u.Reason == v1alpha1.ReasonUnschedulable && u.NextAttemptTime != nil
}

// spoilt tells whether an attempt has ended since its shared pod did not bring the content. Whose fault that was is not known, so
// the next one is alone.
func (w *work) spoilt(u *v1alpha1.UnpackStatus) bool {
	return u != nil && u.EndTime != nil && u.Generation == w.bundle.Generation &&
		u.Reason == v1alpha1.ReasonPodFailed && pod.IsShared(w.name.Name, u)
}

// howEnded is the word for how an attempt that brought nothing has ended.
func (w *work) howEnded(u *v1alpha1.UnpackStatus) string {
	if gaveWay(u) || u.Reason == v1alpha1.ReasonQueued || w.spoilt(u) {
		return "made way"
	}
	return "failed"
}

// lastWords is what an attempt that has ended adds to what is said of the bundle that waits for the next one.
func (w *work) lastWords(u *v1alpha1.UnpackStatus) string {
	if u == nil || u.Generation != w.bundle.Generation || u.Message == "" {
		return ""
	}
	how := w.howEnded(u)
	if how == "failed" && u.Failures == 0 {
		return "" // it was suspended, or held up otherwise
	}
	return "; the last attempt " + how + ": " + u.Message
}
