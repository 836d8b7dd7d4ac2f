// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A server that cannot now is asked again, as pull does.
func TestListsSurviveAServerThatIsAway(t *testing.T) {
	for _, command := range []string{"ls", "tree"} {
		t.Run(command, func(t *testing.T) {
			var asked atomic.Int32
			url := serveBundle(t, served(), func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.Contains(r.URL.Path, "/content") {
					return false
				}
				if asked.Add(1) == 1 {
					refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "the server is being replaced")
					return true
				}
				w.Header().Set("Content-Type", "application/json")
				if _, err := io.WriteString(w, `{"path":"","entries":[{"name":"greeting","type":"File","mode":"0644","size":6}]}`); err != nil {
					t.Error(err)
				}
				return true
			})
			stdout, stderr, code := run(t, command, "app", "-s", url, "-n", "team")
			if code != 0 || !strings.Contains(stdout, "greeting") || asked.Load() != 2 {
				t.Errorf("%d requests, it ends with %d: %s%s", asked.Load(), code, stdout, stderr)
			}
		})
	}
}

// What the API refuses is not asked for in another way.
func TestListsEndAtWhatIsRefused(t *testing.T) {
	for _, command := range []string{"ls", "cat"} {
		t.Run(command, func(t *testing.T) {
			var asked atomic.Int32
			url := serveBundle(t, served(), func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.Contains(r.URL.Path, "/content") {
					return false
				}
				asked.Add(1)
				refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, "bundles/content is forbidden")
				return true
			})
			_, stderr, code := run(t, command, "app", "greeting", "-s", url, "-n", "team")
			if code == 0 || !strings.Contains(stderr, "forbidden") || asked.Load() != 1 {
				t.Errorf("%d requests, it ends with %d: %s", asked.Load(), code, stderr)
			}
		})
	}
}
