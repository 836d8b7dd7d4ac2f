// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"io"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// What is not there does not keep the others from being printed, and is an error at the end.
func TestCatPrintsWhatIsThere(t *testing.T) {
	asked := 0
	url := serveBundle(t, served(), func(w http.ResponseWriter, r *http.Request) bool {
		asked++
		switch name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]; name {
		case "first", "second":
			refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, "content has no "+name, metav1.StatusCause{Type: v1alpha1.CauseFileNotFound})
		case "secret":
			refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, "not that")
		default:
			w.Header().Set("ETag", `"`+digestOf([]byte(name))+`"`)
			_, _ = io.WriteString(w, name)
		}
		return true
	})
	for _, test := range []struct {
		paths  string
		code   int
		stdout string
		stderr string // its errors
		asked  int
	}{
		{"a b", ExitOK, "ab", "", 2},
		{"first a second b", ExitNotFound, "ab", "error: content has no first\nerror: content has no second\n", 4},
		{"secret a", ExitNotAllowed, "", "error: not that\n", 1},
		{"first a secret b", ExitNotAllowed, "a", "error: content has no first\nerror: not that\n", 3},
		{"first second secret", ExitNotAllowed, "", "error: content has no first\nerror: content has no second\nerror: not that\n", 3},
	} {
		asked = 0
		stdout, stderr, code := run(t, append([]string{"cat", "app", "-s", url, "-n", "team"}, strings.Fields(test.paths)...)...)
		said, _, _ := strings.Cut(stderr, "hint: ")
		if code != test.code || stdout != test.stdout || said != test.stderr || asked != test.asked {
			t.Errorf("%s ends with %d after %d requests: %q, %q", test.paths, code, asked, stdout, stderr)
		}
	}
}
