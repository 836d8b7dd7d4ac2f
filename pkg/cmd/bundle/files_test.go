// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/tarball"
)

// A path is told from the name of a bundle as users of the system write it.
func TestIsLocal(t *testing.T) {
	for _, test := range []struct {
		arg           string
		unix, windows bool
	}{
		{"app", false, false},
		{"app@-1", false, false},
		{"app@sha256:530a62cc", false, false},
		{"./app", true, true},
		{"C:/app", true, true},
		{"sub/app", true, true},
		{`sub\app`, false, true},
		{`C:\app`, false, true},
		{`.\app`, true, true},
		{"..", true, true},
		{"app.tgz", true, true},
	} {
		if unix, windows := isLocalWhere('/', test.arg), isLocalWhere('\\', test.arg); unix != test.unix || windows != test.windows {
			t.Errorf("%s: %v, and on Windows %v", test.arg, unix, windows)
		}
	}
}

// Where a folder has no modes they are no difference, and that of a content is told from its files alone.
func TestFoldersWithoutModes(t *testing.T) {
	ctx, base := t.Context(), t.TempDir()
	write := func(name string, mode os.FileMode) (folder, archive string) {
		folder, archive = filepath.Join(base, name), filepath.Join(base, name+".tar.gz")
		file, err := os.Create(archive)
		if err == nil {
			err = os.Mkdir(folder, 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, "run"), []byte("#!/bin/sh\n"), 0o600)
		}
		if err == nil {
			err = os.Chmod(filepath.Join(folder, "run"), mode)
		}
		if err == nil {
			_, err = tarball.Pack(ctx, file, folder, "", tarball.Limits{})
		}
		if err != nil {
			t.Fatal(err)
		}
		return folder, archive
	}
	plain, plainArchive := write("plain", 0o644)
	_, executable := write("executable", 0o755)
	for _, test := range []struct {
		name, a, b string
		modeless   bool
		differ     bool
	}{
		{"a folder", executable, plain, false, true},
		{"a folder without modes", executable, plain, true, false},
		{"a folder without modes first", plain, executable, true, false},
		{"archives, which have them everywhere", executable, plainArchive, true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newSession(genericiooptions.NewTestIOStreamsDiscard())
			s.modeless = test.modeless
			c := &comparison{session: s}
			for path, side := range map[string]**files{test.a: &c.a, test.b: &c.b} {
				var err error
				if *side, err = s.side(ctx, path); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.run(ctx); (err != nil) != test.differ {
				t.Errorf("%v", err)
			}
		})
	}
	if err := verifyFolder(ctx, plain, executable, true); err == nil || !strings.Contains(err.hint, "a folder has no modes here") {
		t.Errorf("%v", err)
	}
	if err := verifyFolder(ctx, plain, executable, false); err == nil || strings.Contains(err.hint, "modes") || !strings.Contains(err.hint, "diff app@2 "+plain+" ") {
		t.Errorf("%v", err)
	}
}

// However many files differ, an archive is read once.
func TestDiffReadsAnArchiveOnce(t *testing.T) {
	base := t.TempDir()
	folder, archive := filepath.Join(base, "folder"), filepath.Join(base, "archive.tar.gz")
	file, err := os.Create(archive)
	if err == nil {
		err = os.Mkdir(folder, 0o755)
	}
	texts := map[string]string{"a": "one\n", "b": "", "c": "three\n", "large": strings.Repeat("line\n", maxText/5+1)}
	for name, text := range texts {
		err = errors.Join(err, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	if err == nil {
		_, err = tarball.Pack(t.Context(), file, folder, "", tarball.Limits{})
	}
	for name := range texts {
		err = errors.Join(err, os.WriteFile(filepath.Join(folder, name), []byte("other\n"), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	s := newSession(streams)
	c := &comparison{session: s}
	if c.a, err = s.side(t.Context(), archive); err == nil {
		c.b, err = s.side(t.Context(), folder)
	}
	if err = errors.Join(err, os.Remove(archive)); err != nil {
		t.Fatal(err)
	}
	if err := c.run(t.Context()); err != errNo {
		t.Fatal(err)
	}
	for _, want := range []string{"-one\n+other\n", "@@ -0,0 +1 @@\n+other\n", "-three\n+other\n", "/large differ: 1.0 MiB, 6 B"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q: %s", want, out)
		}
	}
}

// verifyFolder verifies a folder against the content that an archive is.
func verifyFolder(ctx context.Context, folder, archive string, modeless bool) *problem {
	s := newSession(genericiooptions.NewTestIOStreamsDiscard())
	summary, _, err := summarize(ctx, archive)
	if err != nil {
		return &problem{err: err}
	}
	s.modeless = modeless
	err = s.verifyLocal(ctx, target{name: "app", revision: "2"}, v1alpha1.ContentStatus{UncompressedDigest: summary.UncompressedDigest}, folder)
	if err == nil {
		return nil
	}
	return s.explain(ctx, err)
}
