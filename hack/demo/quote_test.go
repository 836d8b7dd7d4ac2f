// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestQuote(t *testing.T) {
	for word, want := range map[string]string{
		"_output/bin":     "_output/bin",
		"/a-b/c.d:1@e,f+": "/a-b/c.d:1@e,f+",
		"":                "''",
		"a b":             "'a b'",
		"~/a":             "'~/a'",
		"a'b":             `'a'\''b'`,
		`$(id)"\`:         `'$(id)"\'`,
		"a\nb*":           "'a\nb*'",
	} {
		if got := quote(word); got != want {
			t.Errorf("%q is quoted as %s, not %s", word, got, want)
		}
	}
}

// TestPaths has the user's shell read the paths of a session in commands that are printed for it.
func TestPaths(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "it's a folder; with $HOME")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := newSession(options{dataDir: dir, server: filepath.Join(dir, "rukpak-apiserver"), kubectl: "kubectl"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.shell(t.Context(), s.exports()+"\n"+`printf '%s|%s' "$KUBECONFIG" "${PATH%%:*}"`), filepath.Join(dir, "kubeconfig")+"|"+dir; got != want {
		t.Errorf("the shell reads %s, not %s", got, want)
	}
	file := filepath.Join(dir, "hello.yaml")
	s.shell(t.Context(), "echo hello > "+quote(file))
	if text, err := os.ReadFile(file); s.err != nil || string(text) != "hello\n" {
		t.Errorf("%q was written: %v, %v", text, err, s.err)
	}
}
