// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package extract

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rukpak.io/apiserver/pkg/tarball"
)

// On Windows a link leads where it leads elsewhere, or it is not made.
func TestNative(t *testing.T) {
	for _, test := range []struct {
		name, target string
		want, reason string
	}{
		{"link", "a", "a", ""},
		{"b/link", "../a/c", `..\a\c`, ""},
		{"link", `..\..\x`, "", `the target "..\\..\\x"`},
		{"link", `\x`, "", `the target "\\x"`},
		{"link", `C:\x`, "", "the target"},
		{"link", "C:x", "", "the target"},
		{"link", "file:stream", "", "the target"},
		{`a\link`, "", "", "the name"},
		{"C:x", "", "", "the name"},
	} {
		e := tarball.Entry{Name: test.name, Type: tarball.TypeSymlink, Linkname: test.target}
		got, err := native(e, '\\')
		refused, ok := errors.AsType[*tarball.EntryError](err)
		if got != test.want || ok != (test.reason != "") || ok && (refused.Entry != test.name || !strings.HasPrefix(refused.Reason, test.reason)) {
			t.Errorf("%s -> %s: %q, %v", test.name, test.target, got, err)
		}
		if got, err := native(e, '/'); got != test.target || err != nil {
			t.Errorf("elsewhere, %s -> %s: %q, %v", test.name, test.target, got, err)
		}
	}
}

// On Windows links are made when what they lead to is there.
func TestLinksAreLastOnWindows(t *testing.T) {
	source := t.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(source, "sub/dir"), 0o700), os.Symlink("sub/dir", filepath.Join(source, "a")),
		os.WriteFile(filepath.Join(source, "z"), []byte("z"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var packed bytes.Buffer
	if _, err := tarball.Pack(t.Context(), &packed, source, "", tarball.Limits{}); err != nil {
		t.Fatal(err)
	}
	dir, early := t.TempDir(), false
	mode := func(e tarball.Entry) fs.FileMode {
		_, err := os.Lstat(filepath.Join(dir, "a"))
		early = early || err == nil
		return ForOwner(e)
	}
	summary, err := fill(t.Context(), bytes.NewReader(packed.Bytes()), dir, Options{Mode: mode}, '\\')
	if err != nil || summary.Files != 2 || early {
		t.Errorf("%+v, %v; a link was made before the last file: %v", summary, err, early)
	}
	if target, err := os.Readlink(filepath.Join(dir, "a")); target != `sub\dir` {
		t.Errorf("it leads to %q, %v", target, err)
	}
	if err := os.Symlink(`..\x`, filepath.Join(source, "b")); err != nil {
		t.Fatal(err)
	}
	packed.Reset()
	if _, err := tarball.Pack(t.Context(), &packed, source, "", tarball.Limits{}); err != nil {
		t.Fatal(err)
	}
	_, err = fill(t.Context(), &packed, t.TempDir(), Options{}, '\\')
	if refused, ok := errors.AsType[*tarball.EntryError](err); !ok || refused.Entry != "b" {
		t.Errorf("%v", err)
	}
}
