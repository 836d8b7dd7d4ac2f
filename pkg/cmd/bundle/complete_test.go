// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// A name is found behind the first page, too.
func TestCompletionOfManyNames(t *testing.T) {
	asked := 0
	url := serveBundle(t, served(), func(w http.ResponseWriter, r *http.Request) bool {
		asked++
		w.Header().Set("Content-Type", "application/json")
		text := `{"apiVersion":"rukpak.io/v1alpha1","kind":"BundleList","metadata":{"continue":"more"},"items":[{"metadata":{"name":"app"}}]}`
		if r.URL.Query().Get("continue") == "more" {
			text = `{"apiVersion":"rukpak.io/v1alpha1","kind":"BundleList","items":[{"metadata":{"name":"web"}},{"metadata":{"name":"xyz"}}]}`
		}
		_, _ = io.WriteString(w, text)
		return true
	})
	stdout, stderr, code := run(t, "__complete", "wait", "-s", url, "-n", "team", "w")
	if names := strings.Split(stdout, "\n"); code != ExitOK || names[0] != "web" || asked != 2 || strings.Contains(stdout, "xyz") {
		t.Errorf("it ends with %d after %d requests: %s%s", code, asked, stdout, stderr)
	}
}
