// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A server whose content is not what its digest says, and which cuts and forgets as told.
func serve(t *testing.T, content []byte, digest string, damage func(http.ResponseWriter, *http.Request) bool) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if damage != nil && damage(w, r) {
			return
		}
		w.Header().Set("ETag", `"`+digest+`"`)
		http.ServeContent(w, r, "app.tar.gz", time.Time{}, bytes.NewReader(content))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func TestPullRefusesWhatHasNotItsDigest(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789"), 100_000)
	url := serve(t, content, digestOf([]byte("something else")), nil)
	for _, test := range []struct{ name, to string }{{"file", "app.tar.gz"}, {"folder", "app/"}} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			to := filepath.Join(dir, test.to)
			if strings.HasSuffix(test.to, "/") {
				to += "/"
			}
			_, stderr, code := run(t, "pull", "app", to, "-s", url, "-n", "default")
			if code != ExitWrongContent || !strings.Contains(stderr, "does not have the digest") || !strings.Contains(stderr, "hint: what came is damaged and was not kept") {
				t.Errorf("it ends with %d: %s", code, stderr)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("%v is left, %v", left, err)
			}
		})
	}
	t.Run("stdout", func(t *testing.T) {
		_, stderr, code := run(t, "pull", "app", "-", "-s", url, "-n", "default")
		if code != ExitWrongContent || !strings.Contains(stderr, "do not use it") {
			t.Errorf("it ends with %d: %s", code, stderr)
		}
	})
}

// When the content that is being pulled is not served any more, the current one is pulled.
func TestPullOfContentThatGoesAway(t *testing.T) {
	old, current := bytes.Repeat([]byte("old"), 1<<20), bytes.Repeat([]byte("new"), 1<<20)
	gone := false
	url := serve(t, current, digestOf(current), func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.URL.Query().Get("digest") == digestOf(old):
			gone = true
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":404,"reason":"NotFound","message":"not served any more","details":{"name":"app"}}`)
			return true
		case gone:
			return false
		}
		w.Header().Set("ETag", `"`+digestOf(old)+`"`)
		w.Header().Set("Content-Length", fmt.Sprint(len(old)))
		_, _ = w.Write(old[:1<<20])
		panic(http.ErrAbortHandler)
	})
	to := filepath.Join(t.TempDir(), "app.tar.gz")
	_, stderr, code := run(t, "pull", "app", to, "-s", url, "-n", "default")
	if code != ExitOK || !strings.Contains(stderr, "beginning anew") {
		t.Errorf("it ends with %d: %s", code, stderr)
	}
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, current) {
		t.Errorf("the file is not the current content: %v", err)
	}
}

func TestPullReplacesNothingButFiles(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	for path, refused := range map[string]bool{file: false, filepath.Join(dir, "new"): false, link: true, os.DevNull: true} {
		if err := replaceable(path); (err != nil) != refused {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// The longest names of bundles leave no room for that of a part, or of the archive itself.
func TestPullOfALongName(t *testing.T) {
	content := []byte("content")
	url := serve(t, content, digestOf(content), nil)
	t.Chdir(t.TempDir())
	for length, want := range map[int]int{172: ExitOK, 248: ExitOK, 249: ExitUsage} {
		name := strings.Repeat("n", length)
		_, stderr, code := run(t, "pull", name, "-s", url, "-n", "team")
		got, err := os.ReadFile(name + ".tar.gz")
		if code != want || want == ExitOK && (err != nil || !bytes.Equal(got, content)) {
			t.Errorf("one of %d ends with %d: %s", length, code, stderr)
		}
	}
	if left, err := filepath.Glob("*.part"); err != nil || len(left) > 0 {
		t.Errorf("%q are left: %v", left, err)
	}
}
