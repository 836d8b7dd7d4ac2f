// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

// settle looks after a bundle whose content is there: when somebody asks, or the interval is over, it looks up
// what the reference names now, and begins an attempt if that is another image. A look is written down only when it
// has ended, and the same image changes nothing but the time of the look.
//
// What a look needs in between is derived from the status, so that a restart goes on with it.
func (w *work) settle(ctx context.Context) (time.Duration, error) {
	if err := w.forgetRetry(ctx); err != nil {
		return 0, err
	}
	wait, wanted := w.untilLook()
	if !wanted || wait > 0 {
		return wait, nil
	}
	h, err := w.hold(ctx)
	switch {
	case err != nil:
		return 0, err
	case h != nil && h.reason == v1alpha1.ReasonWaitingForUpload:
		return 0, w.save(ctx, w.handleRefresh) // there is nothing to look up
	case h != nil && (h.reason == "" || h.reason == v1alpha1.ReasonWaitingForProvisioner):
		return 0, nil
	case h != nil:
		return 0, w.rest(ctx, *h)
	case v1alpha1.Digested(w.bundle.Spec.Source.Image.Reference):
		return 0, w.save(ctx, w.handleRefresh) // it names the same for ever
	}
	return w.look(ctx)
}

// refreshAsked tells whether the annotation rukpak.io/refresh has a value that has not been handled.
func (w *work) refreshAsked() bool {
	return asked(w.bundle.Annotations[v1alpha1.AnnotationRefresh], w.bundle.Status.LastHandledRefresh)
}

func (w *work) handleRefresh(s *v1alpha1.BundleStatus) {
	if w.refreshAsked() {
		s.LastHandledRefresh = echo(w.bundle.Annotations[v1alpha1.AnnotationRefresh])
	}
}

// forgetRetry handles the annotation rukpak.io/retry of a bundle whose content is there: what can be tried
// again then is a refresh that has failed.
func (w *work) forgetRetry(ctx context.Context) error {
	if !w.retryAsked() || w.class != nil && foreign(w.class) {
		return nil
	}
	return w.save(ctx, func(s *v1alpha1.BundleStatus) {
		s.LastHandledRetry = echo(w.bundle.Annotations[v1alpha1.AnnotationRetry])
		if r := s.Refresh; r != nil && r.Failures > 0 {
			r.NextTime, r.Refused = &metav1.Time{Time: w.now}, ""
		}
	})
}

// untilLook returns how long it is until the next look, and whether there is to be one.
func (w *work) untilLook() (wait time.Duration, wanted bool) {
	if w.refreshAsked() {
		return 0, true
	}
	image := w.bundle.Spec.Source.Image
	if image == nil || v1alpha1.Digested(image.Reference) || w.bundle.Spec.Suspend {
		return 0, false
	}
	r := w.bundle.Status.Refresh
	if r != nil && r.NextTime != nil {
		return until(r.NextTime.Time, w.now, w.longestWait()), true
	}
	if r != nil && r.Refused != "" && w.classChanged() {
		return 0, true
	}
	interval, ok := w.interval()
	if !ok {
		return 0, false
	}
	return max(w.lastLook().Add(interval).Sub(w.now), 0), true
}

// lastLook is when it was known last what the reference names. A time that is in the future came from a clock that was ahead,
// and says nothing, unless that was by no more than clocks differ that somebody minds.
func (w *work) lastLook() time.Time {
	var last time.Time
	for _, at := range []*metav1.Time{w.lookTime(), w.contentTime()} {
		if at != nil && at.After(last) && !at.After(w.now.Add(clocksDiffer)) {
			last = at.Time
		}
	}
	return last
}

func (w *work) lookTime() *metav1.Time {
	if r := w.bundle.Status.Refresh; r != nil {
		return r.LastTime
	}
	return nil
}

func (w *work) contentTime() *metav1.Time {
	if c := w.bundle.Status.Content; c != nil {
		return &c.UpdateTime
	}
	return nil
}

// interval is the bundle's refreshIntervalSeconds, up to a tenth shorter or longer: different for each bundle and
// each look, and the same whoever computes it.
func (w *work) interval() (time.Duration, bool) {
	seconds := w.bundle.Spec.RefreshIntervalSeconds
	if seconds == nil {
		return 0, false
	}
	interval := time.Duration(*seconds) * time.Second
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %d", w.bundle.UID, w.lastLook().Unix())
	return interval - interval/10 + time.Duration(h.Sum64()%uint64(interval/5)), true
}

// classChanged tells whether the class is another than the latest attempt followed.
func (w *work) classChanged() bool {
	u := w.bundle.Status.Unpack
	return w.class != nil && u != nil && (u.ClassUID != w.class.UID || u.ClassGeneration != w.class.Generation)
}

// look finds out what the reference names now, as far as it gets now.
func (w *work) look(ctx context.Context) (time.Duration, error) {
	mode, refused, err := w.mode()
	if err != nil {
		return 0, err
	}
	if refused != nil {
		return w.lookFailed(ctx, *refused)
	}
	if found := w.finds.get(w.name); found.nonce == w.lookNonce(w.bundle) {
		return w.looked(ctx, found.reference)
	}
	w.looking = true
	var f finding
	if mode == v1alpha1.UnpackModeDirect {
		f = w.lookDirect(ctx)
	} else if f, err = w.lookPod(ctx, mode); err != nil {
		return 0, err
	}
	switch {
	case f.failure != nil:
		return w.lookFailed(ctx, *f.failure)
	case f.reference == "":
		return f.wait, nil
	}
	return w.looked(ctx, f.reference)
}

// finding is what a look has come to.
type finding struct {
	reference string        // by digest, once it is known
	failure   *verdict      // why it will not be known
	wait      time.Duration // else when to look at it again, if nothing happens before
}

// looked draws the conclusion from what the reference names now.
func (w *work) looked(ctx context.Context, found string) (time.Duration, error) {
	w.looking = false
	same := digestOf(found) == digestOf(w.pinned())
	if !same && !w.refusedBefore(found) {
		return w.refresh(ctx, found)
	}
	err := w.save(ctx, func(s *v1alpha1.BundleStatus) {
		w.handleRefresh(s)
		r := &v1alpha1.RefreshStatus{LastTime: &metav1.Time{Time: w.now}}
		if same {
			conditions.SetRefreshed(&s.Conditions, w.bundle.Generation)
		} else {
			r.Failures, r.Refused = s.Refresh.Failures, s.Refresh.Refused
			w.sayRefreshFailed(s, verdict{reason: s.Unpack.Reason, message: s.Unpack.Message})
		}
		s.Refresh = r
	})
	if err != nil {
		return 0, err
	}
	wait, _ := w.untilLook()
	return wait, nil
}

// refusedBefore tells whether an image was unpacked in vain already, so that it would be in vain again.
func (w *work) refusedBefore(found string) bool {
	r := w.bundle.Status.Refresh
	return r != nil && r.Refused != "" && digestOf(r.Refused) == digestOf(found) && !w.classChanged() && !w.refreshAsked()
}

// refresh begins an attempt to put another image into the place of the one that is served.
func (w *work) refresh(ctx context.Context, found string) (time.Duration, error) {
	failures := int32(0)
	if r := w.bundle.Status.Refresh; r != nil {
		failures = r.Failures
	}
	after, err := w.attempt(ctx, failures, task{refresh: true, fresh: true, reference: found})
	if w.waits {
		w.finds.set(w.name, find{w.lookNonce(w.bundle), found})
	}
	return after, err
}

// lookFailed says why it is not known what the reference names.
func (w *work) lookFailed(ctx context.Context, v verdict) (time.Duration, error) {
	w.looking = false
	err := w.save(ctx, func(s *v1alpha1.BundleStatus) {
		w.handleRefresh(s)
		failures, refused := int32(1), ""
		if s.Refresh != nil {
			failures += s.Refresh.Failures
			refused = s.Refresh.Refused // which it may find again
		}
		w.refreshFailed(s, failures, v, refused, pod.Final(v.reason))
	})
	if err != nil {
		return 0, err
	}
	wait, _ := w.untilLook()
	return wait, nil
}

// refreshFailed writes a failure of a look, or of an attempt at what one found, into a status. Refused is an
// image that is not to be tried again. Final means that nobody looks again before his time.
func (w *work) refreshFailed(s *v1alpha1.BundleStatus, failures int32, v verdict, refused string, final bool) {
	r := &v1alpha1.RefreshStatus{LastTime: &metav1.Time{Time: w.now}, Failures: failures, Refused: refused}
	if !final {
		r.NextTime = &metav1.Time{Time: wholeSecond(w.now.Add(w.refreshWait(failures)))}
	}
	s.Refresh = r
	w.sayRefreshFailed(s, v)
}

// refreshWait is how long a refresh waits after so many failures: no longer than it would have without any.
func (w *work) refreshWait(failures int32) time.Duration {
	wait := w.wait(failures)
	if seconds := w.bundle.Spec.RefreshIntervalSeconds; seconds != nil {
		wait = min(wait, time.Duration(*seconds)*time.Second)
	}
	return wait
}

// sayRefreshFailed uses no number and no time, so that what is said stays the same from failure to failure.
func (w *work) sayRefreshFailed(s *v1alpha1.BundleStatus, v verdict) {
	conditions.SetRefreshFailed(&s.Conditions, w.bundle.Generation, v.reason, v.message+"; what was unpacked before is served")
}

// endRefresh writes the failure of an attempt that was to replace what is served.
func (w *work) endRefresh(s *v1alpha1.BundleStatus, v verdict, final bool) {
	refused := ""
	if final {
		refused = s.Unpack.ResolvedReference
	}
	w.refreshFailed(s, s.Unpack.Failures, v, refused, final)
}
