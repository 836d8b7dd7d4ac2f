// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package flock_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"rukpak.io/apiserver/pkg/flock"
)

func TestALinkIsNotFollowed(t *testing.T) {
	dir := t.TempDir()
	outside, link := filepath.Join(t.TempDir(), "outside"), filepath.Join(dir, "lock")
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	if f, err := flock.TryOpen(link, flock.Exclusive); err == nil {
		t.Errorf("%s was opened", f.Name())
		_ = f.Close()
	}
	if _, err := os.Lstat(outside); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file was made outside: %v", err)
	}
}
