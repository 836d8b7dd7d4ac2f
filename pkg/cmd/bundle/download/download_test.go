// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package download

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"
)

// A part goes through no link, and waits for nobody at the other end of a pipe.
func TestPartIsAFile(t *testing.T) {
	for _, test := range []struct {
		name  string
		place func(path, victim string) error
		want  error
	}{
		{"nothing", func(string, string) error { return nil }, nil},
		{"a file", func(path, _ string) error { return os.WriteFile(path, []byte("begun"), 0o600) }, nil},
		{"a link", func(path, victim string) error { return os.Symlink(victim, path) }, ErrNoFile},
		{"a link to nothing", func(path, victim string) error { return os.Symlink(victim+"-none", path) }, ErrNoFile},
		{"a pipe", func(path, _ string) error { return syscall.Mkfifo(path, 0o600) }, ErrNoFile},
		{"a folder", func(path, _ string) error { return os.Mkdir(path, 0o700) }, ErrNoFile},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			path, victim := filepath.Join(dir, "part"), filepath.Join(dir, "victim")
			if err := errors.Join(os.WriteFile(victim, []byte("mine"), 0o600), test.place(path, victim)); err != nil {
				t.Fatal(err)
			}
			file, err := openPart(path)
			if file != nil {
				err = errors.Join(err, file.Close())
			}
			if !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
				t.Errorf("it says %v", err)
			}
			if _, err := os.Lstat(victim + "-none"); !os.IsNotExist(err) {
				t.Error("something was made where the link leads")
			}
		})
	}
	t.Run("a link that comes in between", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "part")
		if err := os.Symlink(path+"-victim", path); err != nil {
			t.Fatal(err)
		}
		if file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|openFlags, 0o666); err == nil {
			t.Errorf("%s was opened", file.Name())
		}
	})
}

// The name of a part fits into a folder, is found again, and is that of one destination.
func TestPartOfALongName(t *testing.T) {
	dir, digest := t.TempDir(), "sha256:"+strings.Repeat("0", 64)
	seen := map[string]bool{}
	for _, name := range []string{"app", strings.Repeat("n", 178), strings.Repeat("n", 179), strings.Repeat("n", 180), strings.Repeat("é", 127)} {
		path := filepath.Join(dir, name)
		part := partPath(path, digest)
		if base := filepath.Base(part); len(base) > 255 || seen[part] || !utf8.ValidString(base) {
			t.Errorf("of %q it is %q", name, base)
		}
		seen[part] = true
		if err := os.WriteFile(part, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if found, err := parts(path); err != nil || !slices.Equal(found, []string{part}) {
			t.Errorf("of %q there are %q, %v", name, found, err)
		}
	}
}
