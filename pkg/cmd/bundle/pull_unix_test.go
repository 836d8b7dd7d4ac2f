// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package bundle

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"rukpak.io/apiserver/pkg/flock"
)

// partOf is where content is kept until it can be put at a path.
func partOf(path string, content []byte) string {
	return path + "." + strings.Replace(digestOf(content), ":", "-", 1) + ".part"
}

// What another pull is writing is neither written nor removed. What no pull is writing any more is.
func TestPullLeavesWhatAnotherOneWrites(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789"), 100_000)
	url := serve(t, content, digestOf(content), nil)
	to := filepath.Join(t.TempDir(), "app.tar.gz")
	others, left := partOf(to, []byte("others")), partOf(to, []byte("left"))
	if err := errors.Join(os.WriteFile(left, []byte("le"), 0o600), os.WriteFile(others, []byte("oth"), 0o600), os.WriteFile(partOf(to, content), []byte("bad"), 0o600)); err != nil {
		t.Fatal(err)
	}
	locks := map[string]*os.File{}
	for _, part := range []string{others, partOf(to, content)} {
		lock, err := flock.TryOpen(part, flock.Exclusive)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = lock.Close() })
		locks[part] = lock
	}
	_, stderr, code := run(t, "pull", "app", to, "-s", url, "-n", "default")
	if code != ExitLocal || !strings.Contains(stderr, "is being written by another pull") || !strings.Contains(stderr, "hint: wait until that has ended") {
		t.Errorf("it ends with %d: %s", code, stderr)
	}
	if got, err := os.ReadFile(partOf(to, content)); string(got) != "bad" {
		t.Errorf("the part is %q by now, %v", got, err)
	}
	if err := locks[partOf(to, content)].Close(); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := run(t, "pull", "app", to, "-s", url, "-n", "default"); code != ExitOK || !strings.Contains(stderr, "beginning anew") {
		t.Errorf("it ends with %d: %s", code, stderr)
	}
	if got, err := os.ReadFile(to); !bytes.Equal(got, content) {
		t.Errorf("%d bytes came, %v", len(got), err)
	}
	if got, err := os.ReadFile(others); string(got) != "oth" {
		t.Errorf("the part of another pull is %q by now, %v", got, err)
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the part of no pull is left: %v", err)
	}
}

// Of pulls to the same file at the same time each gets all of it, or says that another one is at it.
func TestPullsToTheSameFile(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789"), 1_000_000)
	url := serve(t, content, digestOf(content), nil)
	dir := t.TempDir()
	to := filepath.Join(dir, "app.tar.gz")
	got := make(chan int, 6)
	var all sync.WaitGroup
	for range cap(got) {
		all.Go(func() {
			_, stderr, code := run(t, "pull", "app", to, "-s", url, "-n", "default")
			if code != ExitOK && !(code == ExitLocal && strings.Contains(stderr, "is being written by another pull")) {
				t.Errorf("it ends with %d: %s", code, stderr)
			}
			got <- code
		})
	}
	all.Wait()
	close(got)
	done := false
	for code := range got {
		done = done || code == ExitOK
	}
	if !done {
		t.Error("none was done")
	}
	if there, err := os.ReadFile(to); !bytes.Equal(there, content) {
		t.Errorf("%d bytes came, %v", len(there), err)
	}
	if entries, err := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("%v is left, %v", entries, err)
	}
}
