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
