// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"slices"
	"time"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

const (
	// settled is how long the same cause has to stand where nothing is tried, or the same attempt waits. The server may learn of a
	// class, a secret or an image a moment after whoever has made it.
	settled = 10 * time.Second
	// certain is how many attempts have to fail for the same cause, one after the other.
	certain = 2
)

// held are the reasons for which nothing is tried, and which somebody has to do something about. That an upload has yet to come is
// none of them: whoever waits for that knows that somebody writes it.
var held = []string{v1alpha1.ReasonClassMissing, v1alpha1.ReasonSuspended}

// hopeless are the reasons for which attempts fail, and go on failing until somebody does something about it. What the server
// itself does not try again is not among them: such a bundle is failing.
var hopeless = []string{
	v1alpha1.ReasonImageNotFound, v1alpha1.ReasonImagePullUnauthorized, v1alpha1.ReasonPullSecretMissing, v1alpha1.ReasonRegistryNotTrusted,
	v1alpha1.ReasonPlatformNotSupported, v1alpha1.ReasonImageVolumeUnsupported, v1alpha1.ReasonServiceAccountMissing,
	v1alpha1.ReasonPodSecurityViolated, v1alpha1.ReasonContentUnreadable, v1alpha1.ReasonInvalidConfiguration,
}

// cause is why there is no content, if that does not go away by itself.
func (s state) cause() string {
	if !s.current() {
		return ""
	}
	if slices.Contains(held, s.ready.Reason) {
		return s.ready.Reason
	}
	u := s.Status.Unpack
	if u == nil || u.Generation != s.Generation || !slices.Contains(hopeless, u.Reason) {
		return ""
	}
	return u.Reason
}

// lasting remembers since when a cause stands, and for what attempts have failed. The bundle counts its failures whatever they were
// of, so those that were not seen do not count.
type lasting struct {
	reason string
	since  time.Time
	// failed is what the last attempts have failed for that have ended, times how many they are, and attempt the last of them.
	failed     string
	times      int
	generation int64
	attempt    int32
}

// see is told of a bundle, and reports whether it is no use to wait any longer.
func (l *lasting) see(s state, now time.Time) bool {
	reason := s.cause()
	if reason != l.reason {
		l.reason, l.since = reason, now
	}
	l.count(s.Status.Unpack)
	if reason == "" {
		return false
	}
	return l.times >= certain && l.failed == reason || !s.between() && now.Sub(l.since) >= settled
}

// count is told of an attempt.
func (l *lasting) count(u *v1alpha1.UnpackStatus) {
	if u == nil || u.EndTime == nil || u.Generation == l.generation && u.Attempt == l.attempt {
		return
	}
	if u.Reason != l.failed || u.Generation != l.generation {
		l.failed, l.times = u.Reason, 0
	}
	l.times++
	l.generation, l.attempt = u.Generation, u.Attempt
}

// between reports whether the last attempt has ended and another will begin by itself: how that ends is waited for.
func (s state) between() bool {
	u := s.Status.Unpack
	return u != nil && u.EndTime != nil && !slices.Contains(held, s.ready.Reason)
}

// mend says what to do about such a cause.
func (s state) mend() []string {
	reason := s.cause()
	lines := remedy(reason)
	switch {
	case reason == v1alpha1.ReasonSuspended:
		lines = append(lines, "go on: "+resume(s.at()))
	case s.between():
		lines = append(lines, "when that is done, try again at once: "+program+" retry "+s.at())
	}
	return append(lines, "that does not go away by itself, and is not waited for; --patient waits on")
}
