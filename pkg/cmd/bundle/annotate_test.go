// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// What a bundle had before a refresh is not shown as what came of it, and what came of it is said once.
func TestWaitingForARefreshShowsWhatCame(t *testing.T) {
	b := served()
	before, after := digestOf([]byte("before")), digestOf([]byte("after"))
	b.Status.Content = &v1alpha1.ContentStatus{Digest: before}
	asked, looks := "", 0
	url := serveBundle(t, b, func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.Method == http.MethodPatch:
			var patch v1alpha1.Bundle
			if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
				t.Error(err)
			}
			asked = patch.Annotations[v1alpha1.AnnotationRefresh]
		case r.URL.Query().Get("watch") != "":
			refuse(w, http.StatusForbidden, "Forbidden", "look again")
			return true
		case asked != "":
			if looks++; looks == 2 {
				b.Status.LastHandledRefresh, b.Status.Content.Digest = asked, after
			}
		}
		return false
	})
	_, stderr, code := run(t, "refresh", "app", "--wait", "-s", url, "-n", "team")
	if code != ExitOK || strings.Contains(stderr, before) || strings.Count(stderr, "ready: "+after) != 1 {
		t.Errorf("it ends with %d: %s", code, stderr)
	}
}

// A request was acted upon when it, or one that took its place, was: by somebody else's of the same moment nobody waits in vain.
func TestRequestsOfTheSameMoment(t *testing.T) {
	const (
		earlier = "2026-11-30T10:00:00.1Z"
		mine    = "2026-11-30T10:00:00.12Z" // less than the next as a text
		later   = "2026-11-30T10:00:00.123Z"
		latest  = "2026-11-30T10:00:01Z"
	)
	for _, test := range []struct {
		name            string
		before          string // what was acted upon when it was asked
		current, status string
		want            bool
	}{
		{"nothing yet", "", mine, "", false},
		{"mine", "", mine, mine, true},
		{"mine, and another has come", "", later, mine, true},
		{"an earlier one", "", mine, earlier, false},
		{"an earlier one, and another has come", "", later, earlier, false},
		{"the one that took its place", "", later, later, true},
		{"one that took its place and is gone", "", latest, later, true},
		{"one that is no time", "", "1796000000", "1796000000", true},
		{"one that is no time, before", "", mine, "1796000000", false},
		{"one that somebody has taken away", "", "", "", false},
		{"one of a clock that is ahead, before", latest, mine, latest, false},
		{"one before, and another has come", earlier, later, earlier, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &request{annotation: v1alpha1.AnnotationRefresh, handled: func(b *v1alpha1.Bundle) string { return b.Status.LastHandledRefresh }}
			b := served()
			b.Status.LastHandledRefresh = test.before
			handled := r.handledSince(b.DeepCopy(), mine)
			b.Annotations, b.Status.LastHandledRefresh = map[string]string{v1alpha1.AnnotationRefresh: test.current}, test.status
			if got := handled(b); got != test.want {
				t.Errorf("handled is %v", got)
			}
		})
	}
}
