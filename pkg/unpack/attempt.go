// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/failpoint"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

// burntAtOnce is how many failures in a row may be followed by the next attempt
// without a wait, when its pod's name is taken. Names are random: it takes somebody
// who watches to take one.
const burntAtOnce = 3

// unpack goes on with the attempt that is running, or begins one when it is time.
func (w *work) unpack(ctx context.Context) (time.Duration, error) {
	u := w.bundle.Status.Unpack
	if open(u) && u.Generation == w.bundle.Generation && !w.retryAsked() && !w.handedOver() && !w.outdated(u) {
		return w.proceed(ctx)
	}
	failures, next := int32(0), w.task()
	if w.sameTask(u, next) {
		if w.stalled() {
			return 0, nil
		}
		if at := u.NextAttemptTime; at != nil {
			if left := until(at.Time, w.now, w.wait(u.Failures)); left > 0 {
				return left, nil
			}
		}
		failures = u.Failures
	}
	return w.attempt(ctx, failures, next)
}

// attempt begins an attempt as soon as there is a place for it, and goes on with it.
func (w *work) attempt(ctx context.Context, failures int32, t task) (time.Duration, error) {
	if goOn, after, err := w.place(ctx); !goOn || err != nil {
		return after, err
	}
	if w.spoilt(w.bundle.Status.Unpack) {
		apart.Inc()
	}
	return w.launch(ctx, failures, t)
}

// launch begins an attempt that has its place, and goes on with it unless it has ended where it began.
func (w *work) launch(ctx context.Context, failures int32, t task) (time.Duration, error) {
	if err := w.begin(ctx, failures, t); err != nil {
		return 0, err
	}
	failpoint.Hit("unpack/after-attempt-write")
	if !open(w.bundle.Status.Unpack) {
		return 0, nil
	}
	return w.proceed(ctx)
}

// sameTask tells whether an attempt that has ended was at what there is to do now, so
// that how it ended counts: the same generation, the same class, and nobody has asked since.
func (w *work) sameTask(u *v1alpha1.UnpackStatus, next task) bool {
	return u != nil && u.EndTime != nil && u.Generation == w.bundle.Generation && !w.retryAsked() &&
		u.ClassUID == w.class.UID && u.ClassGeneration == w.class.Generation && u.Refresh == next.refresh && !next.asked
}

// outdated tells whether a running attempt waits for something that the class, which has changed since, may have
// mended: a pod does not get another node selector or another mode any more.
func (w *work) outdated(u *v1alpha1.UnpackStatus) bool {
	return u.Reason != "" && (u.ClassUID != w.class.UID || u.ClassGeneration != w.class.Generation)
}

func (w *work) stalled() bool {
	c := meta.FindStatusCondition(w.bundle.Status.Conditions, v1alpha1.ConditionStalled)
	return c != nil && c.Status == metav1.ConditionTrue && c.ObservedGeneration == w.bundle.Generation
}

// begin writes a new attempt, which takes every right from the one before. One that
// cannot be is written too, as failed, so that it is known which class it followed.
func (w *work) begin(ctx context.Context, failures int32, t task) error {
	mode, refused, err := w.mode()
	if err != nil {
		return err
	}
	target, unsupported := w.platform(mode)
	if refused == nil {
		refused = unsupported
	}
	u := &v1alpha1.UnpackStatus{
		Generation:           w.bundle.Generation,
		Attempt:              1,
		Nonce:                pod.NewNonce(),
		Mode:                 mode,
		Platform:             target.String(),
		ClassUID:             w.class.UID,
		ClassResourceVersion: w.class.ResourceVersion,
		ClassGeneration:      w.class.Generation,
		RetryRequested:       w.retryAsked(),
		Refresh:              t.refresh,
		ResolvedReference:    t.reference,
		StartTime:            &metav1.Time{Time: w.now},
		Failures:             failures,
	}
	if last := w.bundle.Status.Unpack; last != nil {
		if last.Generation == u.Generation {
			u.Attempt = last.Attempt + 1
		}
		if open(last) {
			w.notes.drop(last.Nonce)
		}
	}
	if mode != v1alpha1.UnpackModeDirect {
		u.PodName = cmp.Or(w.podName, pod.Name(w.bundle.Name, u.Nonce))
	}
	w.notes.begin(u.Nonce, w.now)
	err = w.save(ctx, func(s *v1alpha1.BundleStatus) {
		s.Unpack = u
		if w.retryAsked() {
			s.LastHandledRetry = echo(w.bundle.Annotations[v1alpha1.AnnotationRetry])
		}
		w.noteRefresh(s, t)
		if refused != nil {
			w.end(s, *refused, true)
			return
		}
		if w.unpacked() || failures > w.backoffLimit() {
			return // what is said about what is served, or about the failures, stays
		}
		message := running(u)
		if last := w.bundle.Status.Unpack; failures > 0 && last != nil && last.Message != "" {
			message += "; the one before " + w.howEnded(last) + ": " + last.Message
		}
		conditions.SetProgress(&s.Conditions, u.Generation, metav1.ConditionUnknown, v1alpha1.ReasonUnpacking, message)
		conditions.SetStalled(&s.Conditions, u.Generation, false, v1alpha1.ReasonProgressing, "")
	})
	switch {
	case err != nil:
		w.notes.drop(u.Nonce)
	case open(w.bundle.Status.Unpack):
		w.traces.begin(ctx, w.bundle)
	}
	return err
}

func running(u *v1alpha1.UnpackStatus) string {
	return fmt.Sprintf("attempt %d is running", u.Attempt)
}

// proceed takes the attempt that is running as far as it goes now.
func (w *work) proceed(ctx context.Context) (time.Duration, error) {
	if err := w.beginNow(ctx); err != nil {
		return 0, err
	}
	u := w.bundle.Status.Unpack
	left := u.StartTime.Add(pod.Timeout(w.class)).Sub(w.now)
	if left <= 0 {
		return w.overdue(ctx)
	}
	var (
		after time.Duration
		err   error
	)
	if u.Mode == v1alpha1.UnpackModeDirect {
		after, err = w.proceedDirect(ctx, left)
	} else {
		after, err = w.proceedPod(ctx)
	}
	if err != nil || !open(w.bundle.Status.Unpack) {
		return after, err
	}
	return sooner(after, left), nil
}

// overdue ends an attempt at its deadline, with what it has been waiting for as the reason.
func (w *work) overdue(ctx context.Context) (time.Duration, error) {
	if w.shares() {
		return w.apart(ctx, false)
	}
	u := w.bundle.Status.Unpack
	late := fmt.Sprintf("not done within the %s that the class allows", pod.Timeout(w.class))
	if u.Reason != "" {
		return w.fail(ctx, verdict{reason: u.Reason, message: u.Message + " (" + late + ")"})
	}
	if u.PodUID != "" {
		p, err := w.currentPod(ctx, u)
		if err != nil {
			return 0, err
		}
		if p != nil {
			late += ": " + pod.Stage(p)
		}
	}
	return w.fail(ctx, verdict{reason: v1alpha1.ReasonDeadlineExceeded, message: late})
}

// sooner returns the shorter of two times of which 0 means never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// verdict is why an attempt failed.
type verdict struct {
	reason, message string
	// atOnce lets the next attempt begin without a wait.
	atOnce bool
}

// fail ends the running attempt and returns when the next one begins.
func (w *work) fail(ctx context.Context, v verdict) (time.Duration, error) {
	if err := w.save(ctx, func(s *v1alpha1.BundleStatus) { w.end(s, v, pod.Final(v.reason)) }); err != nil {
		return 0, err
	}
	if next := w.bundle.Status.Unpack.NextAttemptTime; next != nil {
		return max(next.Sub(w.now), time.Millisecond), nil
	}
	if v.atOnce {
		return time.Millisecond, nil
	}
	return 0, nil
}

// end writes the failure of an attempt into a status. Final means that nothing is
// tried until somebody acts.
func (w *work) end(s *v1alpha1.BundleStatus, v verdict, final bool) {
	u, generation := s.Unpack, w.bundle.Generation
	u.EndTime = &metav1.Time{Time: w.now}
	u.Failures++
	u.Reason, u.Message = v.reason, v.message
	u.NextAttemptTime = nil
	if w.unpacked() {
		w.endRefresh(s, v, final)
		return
	}
	v = w.unrestored(s, v)
	if final {
		conditions.SetProgress(&s.Conditions, generation, metav1.ConditionFalse, v.reason, v.message)
		conditions.SetStalled(&s.Conditions, generation, true, v.reason,
			"nothing is tried until the bundle or its class changes, or the annotation "+v1alpha1.AnnotationRetry+" does")
		return
	}
	when := "at once"
	if !v.atOnce || u.Failures > burntAtOnce {
		next := wholeSecond(w.now.Add(w.wait(u.Failures)))
		u.NextAttemptTime = &metav1.Time{Time: next}
		when = "at " + next.UTC().Format(time.RFC3339)
	}
	if u.Failures > w.backoffLimit() {
		// No number and no time, so that this stays the same from failure to failure.
		conditions.SetProgress(&s.Conditions, generation, metav1.ConditionFalse, v.reason, v.message)
		return
	}
	conditions.SetProgress(&s.Conditions, generation, metav1.ConditionUnknown, v.reason,
		fmt.Sprintf("attempt %d failed: %s; the next one begins %s", u.Attempt, v.message, when))
}

// wait is how long to wait after so many failures.
func (w *work) wait(failures int32) time.Duration {
	if failures > w.backoffLimit() {
		return w.Backoff.Slow
	}
	wait := w.Backoff.Base
	for range failures - 1 {
		if wait *= 2; wait >= w.Backoff.Cap {
			return w.Backoff.Cap
		}
	}
	return wait
}

func (w *work) backoffLimit() int32 {
	if w.class.Unpack != nil && w.class.Unpack.BackoffLimit != nil {
		return *w.class.Unpack.BackoffLimit
	}
	return v1alpha1.DefaultBackoffLimit
}

// wholeSecond rounds up to what the API can hold, so that no wait is cut short.
func wholeSecond(t time.Time) time.Time {
	if whole := t.Truncate(time.Second); whole.Before(t) {
		return whole.Add(time.Second)
	}
	return t
}

// say writes what the running attempt waits for, or with an empty reason that it does
// not wait any more. It writes only on a change.
func (w *work) say(ctx context.Context, reason, message string) error {
	u := w.bundle.Status.Unpack
	if u.Reason == reason && u.Message == message {
		return nil
	}
	return w.save(ctx, func(s *v1alpha1.BundleStatus) { w.waitsFor(s, reason, message) })
}

// waitsFor writes into a status what say says.
func (w *work) waitsFor(s *v1alpha1.BundleStatus, reason, message string) {
	s.Unpack.Reason, s.Unpack.Message = reason, message
	if w.unpacked() || s.Unpack.Failures > w.backoffLimit() {
		return
	}
	if reason == "" {
		reason, message = v1alpha1.ReasonUnpacking, running(s.Unpack)
	} else {
		message = fmt.Sprintf("attempt %d waits: %s", s.Unpack.Attempt, message)
	}
	conditions.SetProgress(&s.Conditions, w.bundle.Generation, metav1.ConditionUnknown, reason, message)
}
