// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package uploads

import (
	"net/http"
	"strings"
	"testing"
)

// What is kept with an upload is written again with each part, and grows as JSON: it is bounded, and the answer names it.
func TestKeptFieldsAreBounded(t *testing.T) {
	w := newWorld(t)
	for _, field := range []string{"If-Match", "If-None-Match", "Repr-Digest"} {
		for name, value := range map[string]string{
			"long":               strings.Repeat("x", maxField+1),
			"longer":             strings.Repeat("x", 500<<10),
			"that grows as JSON": strings.Repeat("<", 400<<10),
		} {
			t.Run(field+" "+name, func(t *testing.T) {
				a := w.do(0, http.MethodPost, root, nil, fieldComplete, "?0", field, value)
				if a.code != http.StatusRequestHeaderFieldsTooLarge || a.cause() != string(CauseFieldTooLong) || !strings.Contains(string(a.body), "header "+field) {
					t.Errorf("%d %.300s", a.code, a.body)
				}
			})
		}
		t.Run(field, func(t *testing.T) {
			want := http.StatusCreated
			if field == "If-Match" {
				want = http.StatusPreconditionFailed // there is no content yet
			}
			if a := w.do(0, http.MethodPost, root, nil, fieldComplete, "?0", field, strings.Repeat("<", maxField)); a.code != want {
				t.Errorf("as long as it may be: %d %.300s", a.code, a.body)
			}
		})
	}
	path := w.begin()
	if a := w.patch(0, path, 0, []byte("a"), false, "Repr-Digest", strings.Repeat("x", maxField+1)); a.code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a part: %d %.300s", a.code, a.body)
	}
	if got := w.session(path).Offset(); got != 0 {
		t.Errorf("the upload has %d bytes", got)
	}
}
