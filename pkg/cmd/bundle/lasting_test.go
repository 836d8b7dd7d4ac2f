// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"net/http"
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
		{"two failures, of which one was seen", failed(v1alpha1.ReasonImageNotFound, 2), false, false},
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
	t.Run("attempts", func(t *testing.T) {
		second := waited(v1alpha1.ReasonUnpacking, &v1alpha1.UnpackStatus{Attempt: 2, Failures: 1})
		begun := waited(v1alpha1.ReasonUnpacking, &v1alpha1.UnpackStatus{Attempt: 3, Failures: 2, Reason: v1alpha1.ReasonImageNotFound})
		other := failed(v1alpha1.ReasonImageNotFound, 2)
		other.Status.Unpack.Generation, other.Generation = 1, 1
		other.ready.ObservedGeneration = 1
		for _, test := range []struct {
			name string
			seen []state
			want bool
		}{
			{"two fail for the same", []state{failed(v1alpha1.ReasonImageNotFound, 1), second, failed(v1alpha1.ReasonImageNotFound, 2)}, true},
			{"one fails, and is seen twice", []state{failed(v1alpha1.ReasonImageNotFound, 1), failed(v1alpha1.ReasonImageNotFound, 1)}, false},
			{"the first failed for something else", []state{failed(v1alpha1.ReasonRegistryUnreachable, 1), second, failed(v1alpha1.ReasonImageNotFound, 2)}, false},
			{"something else between", []state{failed(v1alpha1.ReasonImageNotFound, 1), failed(v1alpha1.ReasonRegistryUnreachable, 2), failed(v1alpha1.ReasonImageNotFound, 3)}, false},
			{"two failures are counted, and one has not ended", []state{begun}, false},
			{"of another spec", []state{failed(v1alpha1.ReasonImageNotFound, 1), other}, false},
		} {
			l, now, got := &lasting{}, time.Now(), false
			for _, s := range test.seen {
				got = l.see(s, now)
			}
			if got != test.want {
				t.Errorf("%s: it says %v", test.name, got)
			}
		}
	})
	t.Run("it was another cause", func(t *testing.T) {
		l, now := &lasting{}, time.Now()
		l.see(waited(v1alpha1.ReasonClassMissing, nil), now)
		l.see(waited(v1alpha1.ReasonPending, nil), now.Add(settled))
		if l.see(waited(v1alpha1.ReasonClassMissing, nil), now.Add(settled)) {
			t.Error("it counts from before")
		}
	})
}

// Waiting shows why there is no content, says how long it goes on, and ends where that is no use.
func TestWaitForWhatDoesNotCome(t *testing.T) {
	st := waited(v1alpha1.ReasonImageNotFound, &v1alpha1.UnpackStatus{Attempt: 1, Failures: 1, Reason: v1alpha1.ReasonImageNotFound, EndTime: &metav1.Time{Time: time.Now()}})
	st.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "Bundle"}
	url := serveBundle(t, st.Bundle, func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("watch") == "" {
			return false
		}
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, "look again")
		st.Status.Unpack.Attempt, st.Status.Unpack.Failures = 2, 2
		return true
	})
	_, stderr, code := run(t, "wait", "app", "-s", url, "-n", "team")
	if code != ExitNo || !strings.Contains(stderr, "bundle/app: attempt 2: ImageNotFound") || !strings.Contains(stderr, "retry app -s "+url+" -n team") || !strings.Contains(stderr, "--patient waits on") {
		t.Errorf("it ends with %d: %s", code, stderr)
	}
	_, stderr, code = run(t, "wait", "app", "--patient", "--timeout", "200ms", "-s", url, "-n", "team")
	if code != ExitUnavailable || !strings.Contains(stderr, "bundle/app: attempt 2: ImageNotFound\nbundle/app: waiting, for 0s at most\n") {
		t.Errorf("it ends with %d: %s", code, stderr)
	}
}

// On a terminal the line says how long the stage takes, and how long it is waited for.
func TestClock(t *testing.T) {
	now := time.Now()
	g := &stages{began: now.Add(-12 * time.Second), limit: time.Hour, until: now.Add(90 * time.Second)}
	if got := g.clock(now); got != " (12s, for 90s more at most)" {
		t.Errorf("it says %q", got)
	}
	g.limit = 0
	if got := g.clock(now); got != " (12s)" {
		t.Errorf("it says %q", got)
	}
}
