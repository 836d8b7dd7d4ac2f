// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

// startUpload sends the first half of a body and returns once the server is at work on it. The function
// that it returns sends the rest and returns the answer.
func startUpload(t *testing.T, w way, path, token string, body []byte) func() reply {
	t.Helper()
	tmp := filepath.Join(shared.server.Dir, "content", "tmp")
	before := len(must(os.ReadDir(tmp))(t))
	reader, writer := io.Pipe()
	answers := make(chan reply, 1)
	go func() {
		defer close(answers)
		answers <- w.do(t, http.MethodPut, path, token, reader)
	}()
	half := len(body) / 2
	if _, err := writer.Write(body[:half]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "upload has begun", func() string {
		if len(must(os.ReadDir(tmp))(t)) == before {
			return "no file"
		}
		return ""
	})
	return func() reply {
		t.Helper()
		if _, err := writer.Write(body[half:]); err != nil {
			t.Fatal(err)
		}
		if err := writer.Close(); err != nil {
			t.Fatal(err)
		}
		return <-answers
	}
}
