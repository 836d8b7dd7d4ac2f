// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/bytesize"
	"rukpak.io/apiserver/pkg/cmd/bundle/advice"
)

// state is what a bundle's status says.
type state struct {
	*v1alpha1.Bundle
	ready, available, stalled, full, refreshed *metav1.Condition
	// where are the flags that commands in hints have, if there are others than that of the namespace.
	where string
}

func stateOf(b *v1alpha1.Bundle) state {
	find := func(kind string) *metav1.Condition {
		if c := meta.FindStatusCondition(b.Status.Conditions, kind); c != nil {
			return c
		}
		return &metav1.Condition{Type: kind, Status: metav1.ConditionUnknown}
	}
	return state{
		Bundle: b, ready: find(v1alpha1.ConditionReady), available: find(v1alpha1.ConditionContentAvailable), stalled: find(v1alpha1.ConditionStalled),
		full: find(v1alpha1.ConditionStorageFull), refreshed: find(v1alpha1.ConditionRefreshed),
	}
}

// current reports whether the conditions are about the spec as it is.
func (s state) current() bool { return s.ready.ObservedGeneration >= s.Generation }

func (s state) isReady() bool { return s.current() && s.ready.Status == metav1.ConditionTrue }

// unrefreshed reports whether the last look at what the tag names, or unpacking that, has failed.
func (s state) unrefreshed() bool { return s.refreshed.Status == metav1.ConditionFalse }

// failing reports whether nothing more will come soon: attempts failed more often than the class allows, or nothing is tried any more.
func (s state) failing() bool {
	return s.current() && (s.ready.Status == metav1.ConditionFalse || s.stalled.Status == metav1.ConditionTrue)
}

// failed is how many attempts have failed for the spec as it is, where another will be made.
func (s state) failed() int32 {
	u := s.Status.Unpack
	if !s.current() || s.isReady() || u == nil || u.Generation != s.Generation {
		return 0
	}
	return u.Failures
}

// words says in a sentence how it goes.
func (s state) words() string {
	var text string
	switch {
	case !s.current():
		text = "The spec has changed, and nobody has looked at it yet."
	case s.isReady():
		text = "Its content is there and served."
	default:
		text = sentence(s.ready.Reason, s.ready.Message)
	}
	if !s.isReady() && s.available.Status == metav1.ConditionTrue {
		text += " What it had before is served."
	}
	if s.isReady() && s.unrefreshed() {
		text += " It is not refreshed: " + sentence(s.refreshed.Reason, s.refreshed.Message)
	}
	if s.full.Status == metav1.ConditionTrue && s.ready.Reason != v1alpha1.ReasonStorageFull {
		text += " The store of its class is full: new content waits."
	}
	if s.stalled.Status == metav1.ConditionTrue {
		text += " Nothing is tried until somebody acts."
	}
	return text
}

// sentence says what a reason means, and how the server put it.
func sentence(reason, message string) string {
	text := reason
	if a, ok := advice.For(reason); ok {
		text = upper(a.Meaning)
	}
	if text == "" {
		text = "Nobody has looked at it yet"
	}
	if message != "" {
		text += ": " + message
	}
	return strings.TrimRight(text, ".") + "."
}

// plural counts things.
func plural(n int64, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case strings.HasSuffix(what, "y"):
		what = strings.TrimSuffix(what, "y") + "ie"
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func upper(text string) string {
	if text == "" {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// at names the bundle in a command.
func (s state) at() string {
	if s.where == "" && s.Namespace != "" {
		return s.Name + " -n " + s.Namespace
	}
	return s.Name + s.where
}

// next says what to do about it, one line for each way.
func (s state) next() []string {
	at := s.at()
	var lines []string
	if s.available.Status == metav1.ConditionTrue {
		lines = append(lines, "read it: "+program+" tree "+at+"; "+program+" pull "+at)
	}
	if s.full.Status == metav1.ConditionTrue && s.ready.Reason != v1alpha1.ReasonStorageFull {
		lines = append(lines, remedy(v1alpha1.ReasonStorageFull)...)
	}
	if s.isReady() {
		if s.unrefreshed() {
			lines = append(lines, remedy(s.refreshed.Reason)...)
			lines = append(lines, "when that is done, look again at once: "+program+" refresh "+at+" --wait")
		}
		return lines
	}
	reason := s.ready.Reason
	if reason != v1alpha1.ReasonUnpacking {
		lines = append(lines, remedy(reason)...)
	}
	switch {
	case reason == v1alpha1.ReasonWaitingForUpload:
		lines = append(lines, "write it: "+program+" push "+at+" FOLDER")
	case reason == v1alpha1.ReasonSuspended:
		lines = append(lines, "go on: "+resume(at))
	case s.failing() && s.Spec.Source.Type == v1alpha1.SourceTypeImage:
		lines = append(lines, "when that is done, try again at once: "+program+" retry "+at)
	case !s.failing():
		lines = append(lines, "watch it: "+program+" wait "+at)
	}
	return lines
}

// remedy says what to do about a reason, if that is known.
func remedy(reason string) []string {
	if a, ok := advice.For(reason); ok && a.Remedy != "" {
		return []string{reason + ": " + a.Remedy}
	}
	return nil
}

// stage is what wait shows of a bundle on one line.
func (s state) stage() string {
	if s.isReady() {
		text := "ready"
		if c := s.Status.Content; c != nil {
			text = fmt.Sprintf("ready: %s, %s, %s", c.Digest, bytesize.String(c.Size), plural(c.Files, "file"))
		}
		switch {
		case refreshing(s.Bundle):
			text = fmt.Sprintf("attempt %d unpacks what its tag names now; until then it is %s", s.Status.Unpack.Attempt, text)
		case s.unrefreshed():
			text += "; not refreshed: " + sentence(s.refreshed.Reason, s.refreshed.Message)
		}
		return text
	}
	if !s.current() || s.ready.Reason == "" {
		return "waiting until the server has seen it"
	}
	text := s.ready.Reason
	if s.ready.Message != "" {
		text += ": " + s.ready.Message
	}
	if u := s.Status.Unpack; u != nil && u.Attempt > 0 && u.Generation == s.Generation {
		text = fmt.Sprintf("attempt %d: %s", u.Attempt, text)
		if u.Reason != "" && u.Reason != s.ready.Reason {
			text += " (" + u.Reason + ")"
		}
		if !strings.Contains(s.ready.Message, u.Message) {
			text += " (" + u.Message + ")"
		}
		if u.PodName != "" && u.EndTime == nil {
			text += ", pod " + u.PodName
		}
	}
	return text
}
