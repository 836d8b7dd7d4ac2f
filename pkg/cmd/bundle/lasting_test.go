// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// waited is a bundle without content, with the reason of Ready and an attempt.
func waited(reason string, u *v1alpha1.UnpackStatus) state {
	b := &v1alpha1.Bundle{ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: "team"}}
	b.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionUnknown, Reason: reason}}
	b.Status.Unpack = u
	return stateOf(b)
}

// What does not go away by itself is waited for no longer than it takes to be sure.
func TestLasting(t *testing.T) {
	end := &metav1.Time{Time: time.Now()}
	failed := func(reason string, failures int32) state {
		return waited(reason, &v1alpha1.UnpackStatus{Attempt: failures, Failures: failures, Reason: reason, EndTime: end})
	}
	runs := func(reason string) state {
		return waited(v1alpha1.ReasonUnpacking, &v1alpha1.UnpackStatus{Attempt: 1, Reason: reason})
	}
	for _, test := range []struct {
		name  string
		state state
		// at once, and when it has stood for a while
		first, later bool
	}{
		{"one failure", failed(v1alpha1.ReasonImageNotFound, 1), false, false},
		{"two failures", failed(v1alpha1.ReasonImageNotFound, 2), true, true},
		{"two failures that may go away", failed(v1alpha1.ReasonRegistryUnreachable, 2), false, false},
		{"a pod waits for an image that is not there", runs(v1alpha1.ReasonImageNotFound), false, true},
		{"a pod waits for a node", runs(v1alpha1.ReasonUnschedulable), false, false},
		{"no class", waited(v1alpha1.ReasonClassMissing, nil), false, true},
		{"suspended", waited(v1alpha1.ReasonSuspended, nil), false, true},
		{"an upload", waited(v1alpha1.ReasonWaitingForUpload, nil), false, false},
		{"nobody has looked", waited(v1alpha1.ReasonPending, nil), false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, now := &lasting{}, time.Now()
			if got := l.see(test.state, now); got != test.first {
				t.Errorf("at once it says %v", got)
			}
			if got := l.see(test.state, now.Add(settled)); got != test.later {
				t.Errorf("later it says %v", got)
			}
			if test.later && !strings.Contains(strings.Join(test.state.mend(), "\n"), ": ") {
				t.Errorf("there is nothing to do: %q", test.state.mend())
			}
		})
	}
	t.Run("it was another cause", func(t *testing.T) {
		l, now := &lasting{}, time.Now()
		l.see(waited(v1alpha1.ReasonClassMissing, nil), now)
		l.see(waited(v1alpha1.ReasonPending, nil), now.Add(settled))
		if l.see(waited(v1alpha1.ReasonClassMissing, nil), now.Add(settled)) {
			t.Error("it counts from before")
		}
	})
}
