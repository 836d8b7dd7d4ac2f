// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"net/http"
	"testing"
)

// A bundle without content has no contents, which is a list.
func TestHistoryOfNoContent(t *testing.T) {
	url := serveBundle(t, served(), func(http.ResponseWriter, *http.Request) bool { return false })
	for _, format := range []string{"json", "yaml"} {
		stdout, stderr, code := run(t, "history", "app", "-o", format, "-s", url, "-n", "team")
		if code != ExitOK || stdout != "[]\n" {
			t.Errorf("as %s it ends with %d: %q%s", format, code, stdout, stderr)
		}
	}
}
