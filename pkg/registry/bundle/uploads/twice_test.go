// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package uploads

import (
	"bytes"
	"net/http"
	"testing"
)

// A client that was told that the commit takes long, or whose connection broke, comes again at the other replica while the
// first one still works. Both commit; neither may say that a condition failed, which the other has changed.
func TestTwoReplicasCommitOneUpload(t *testing.T) {
	w := newWorld(t)
	body, digest := archive(t, map[string]string{"a": "1"})
	path := w.begin("If-None-Match", "*")
	if a := w.patch(0, path, 0, body, false); a.code != http.StatusNoContent {
		t.Fatalf("%d %s", a.code, a.body)
	}
	firstDone, secondIn, secondDone := make(chan bool), make(chan bool), make(chan answer)
	w.store.meanwhile = func() {
		w.store.meanwhile = func() { close(secondIn); <-firstDone }
		go func() {
			a, err := w.try(1, http.MethodPatch, path, bytes.NewReader(nil), patchHeaders(len(body), true)...)
			if err != nil {
				t.Error(err)
			}
			secondDone <- a
		}()
		<-secondIn
	}
	first := w.patch(0, path, len(body), nil, true)
	close(firstDone)
	second := <-secondDone
	again := w.patch(0, path, len(body), nil, true)
	for name, a := range map[string]answer{"first": first, "second": second, "again": again} {
		if a.code/100 != 2 {
			t.Errorf("%s: %d %s", name, a.code, a.body)
		}
	}
	if w.content() != digest {
		t.Errorf("the content is %s, not %s", w.content(), digest)
	}
}
