// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// A deadline of the server's own is no fault of the request's, and none of the server's code: the client is told what was slow, and to come again.
func TestADeadlineIsToldAsSuch(t *testing.T) {
	late := fmt.Errorf("etcd: %w", context.DeadlineExceeded)
	for _, test := range []struct {
		name, method, says string
		slow               func(*world, error)
	}{
		{"a look-up before a write", http.MethodPut, "cannot read the bundle", func(w *world, err error) { w.bundles.get = err }},
		{"a look-up before a read", http.MethodGet, "cannot read the bundle", func(w *world, err error) { w.bundles.get = err }},
		{"the record", http.MethodPut, "cannot record the content", func(w *world, err error) { w.records.err = err }},
		{"the store", http.MethodPut, "cannot store the content", func(w *world, err error) { w.store.commit = err }},
		{"the status", http.MethodPut, "cannot write the content into the status", func(w *world, err error) { w.bundles.err = err }},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.addUpload("app")
			w.put("app", "old")
			body := archive(t, map[string]string{"new": "x"})
			test.slow(w, late)
			got := w.do(test.method, "app", body)
			s := got.status(t)
			if got.code != http.StatusServiceUnavailable || s.Details == nil || s.Details.RetryAfterSeconds < 1 {
				t.Errorf("%d: %s", got.code, got.body)
			}
			if !strings.Contains(s.Message, `bundle "app" in namespace "team": `+test.says+": it took too long") {
				t.Errorf("it says %q", s.Message)
			}
			test.slow(w, nil)
			if got := w.do(test.method, "app", body); got.code != http.StatusOK {
				t.Errorf("when nothing is slow any more: %d %s", got.code, got.body)
			}
		})
	}
}
