// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rukpak.io/apiserver/pkg/tarball"
)

// packed is a canonical archive of files, by their paths.
func packed(t *testing.T, files ...string) []byte {
	t.Helper()
	dir := t.TempDir()
	for _, name := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(name), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	var archive bytes.Buffer
	if _, err := tarball.Pack(t.Context(), &archive, dir, "", tarball.Limits{}); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

// all are the paths below a folder.
func all(t *testing.T, dir string) []string {
	t.Helper()
	var paths []string
	if err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		name, relErr := filepath.Rel(dir, path)
		if paths = append(paths, name); path == dir {
			paths = nil
		}
		return errors.Join(err, relErr)
	}); err != nil {
		t.Fatal(err)
	}
	return paths
}

func TestPullToAFolder(t *testing.T) {
	archive := packed(t, "a", "d/b")
	url := serve(t, archive, digestOf(archive), nil)
	pull := func(t *testing.T, code int, args ...string) string {
		t.Helper()
		_, stderr, got := run(t, append([]string{"pull", "app", "-s", url, "-n", "default"}, args...)...)
		if got != code {
			t.Errorf("it ends with %d: %s", got, stderr)
		}
		return stderr
	}
	expect := func(t *testing.T, dir string, want ...string) {
		t.Helper()
		if got := all(t, dir); !slices.Equal(got, want) {
			t.Errorf("there is %q, not %q", got, want)
		}
	}
	t.Run("somebody's archive beside it stays", func(t *testing.T) {
		dir := t.TempDir()
		mine := filepath.Join(dir, ".new.tar.gz")
		if err := os.WriteFile(mine, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		pull(t, ExitOK, filepath.Join(dir, "new")+"/")
		if got, err := os.ReadFile(mine); string(got) != "mine" {
			t.Errorf("it is %d bytes, %v", len(got), err)
		}
		expect(t, dir, ".new.tar.gz", "new", "new/a", "new/d", "new/d/b")
	})
	t.Run("an empty one stays the folder that it is", func(t *testing.T) {
		dir := t.TempDir()
		before, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		pull(t, ExitOK, dir)
		if after, err := os.Stat(dir); err != nil || !os.SameFile(before, after) || after.Mode() != before.Mode() {
			t.Errorf("it is another, %v", err)
		}
		expect(t, dir, "a", "d", "d/b")
		if said := pull(t, ExitLocal, dir); !strings.Contains(said, "--replace") {
			t.Errorf("it says %s", said)
		}
	})
	t.Run("a link to a folder stays", func(t *testing.T) {
		dir := t.TempDir()
		link, real := filepath.Join(dir, "link"), filepath.Join(dir, "real")
		if err := errors.Join(os.Mkdir(real, 0o700), os.WriteFile(filepath.Join(real, "old"), nil, 0o600), os.Symlink("real", link)); err != nil {
			t.Fatal(err)
		}
		pull(t, ExitOK, link, "--replace")
		if to, err := os.Readlink(link); to != "real" {
			t.Errorf("it leads to %q, %v", to, err)
		}
		expect(t, dir, "link", "real", "real/a", "real/d", "real/d/b")
		if info, err := os.Stat(real); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("its mode is %v, %v", info.Mode(), err)
		}
	})
	t.Run("a link to nothing", func(t *testing.T) {
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink("nothing", link); err != nil {
			t.Fatal(err)
		}
		pull(t, ExitLocal, link+"/")
	})
}

// What has come is not fetched again because it could not be unpacked.
func TestPullUnpacksWhatIsThere(t *testing.T) {
	archive := packed(t, "a", "d/b")
	var sent int64
	url := serve(t, archive, digestOf(archive), func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Range") == "" {
			sent++
		}
		return false
	})
	dir := t.TempDir()
	work := filepath.Join(dir, ".app.kubectl-bundle-pull")
	part := filepath.Join(work, "archive."+strings.Replace(digestOf(archive), ":", "-", 1)+".part")
	if err := errors.Join(os.Mkdir(work, 0o700), os.WriteFile(part, archive, 0o600)); err != nil {
		t.Fatal(err)
	}
	_, stderr, code := run(t, "pull", "app", filepath.Join(dir, "app")+"/", "-s", url, "-n", "default")
	if code != ExitOK || sent != 0 {
		t.Errorf("it ends with %d, and %d whole archives were sent: %s", code, sent, stderr)
	}
	if got := all(t, dir); !slices.Equal(got, []string{"app", "app/a", "app/d", "app/d/b"}) {
		t.Errorf("there is %q", got)
	}
	s := newSession(streamsTo(io.Discard))
	err := s.explain(t.Context(), (&puller{session: s}).notUnpacked(t.Context(), part, &os.PathError{Op: "write", Path: "x", Err: errors.New("why")}))
	if err.code != ExitLocal || !strings.Contains(err.hint, part) {
		t.Errorf("%d: %s", err.code, err.hint)
	}
}

// What comes to be in the folder while the content comes stays, and the archive is kept.
func TestPullKeepsWhatArrives(t *testing.T) {
	archive := packed(t, "a")
	for _, test := range []struct {
		name  string
		empty bool // the folder is there at first
	}{{"into an empty folder", true}, {"to where nothing was", false}} {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "app")
			if test.empty {
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			notes := filepath.Join(dir, "notes.txt")
			url := serve(t, archive, digestOf(archive), func(http.ResponseWriter, *http.Request) bool {
				if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(notes, []byte("mine"), 0o600)); err != nil {
					t.Error(err)
				}
				return false
			})
			_, stderr, code := run(t, "pull", "app", dir+"/", "-s", url, "-n", "default")
			if code != ExitLocal || !strings.Contains(stderr, "has come to be there meanwhile") || !strings.Contains(stderr, "the archive is kept in") {
				t.Errorf("it ends with %d: %s", code, stderr)
			}
			if text, err := os.ReadFile(notes); string(text) != "mine" {
				t.Errorf("what arrived is %q, %v", text, err)
			}
		})
	}
}

func TestPullToTheRoot(t *testing.T) {
	_, stderr, code := run(t, "pull", "app", "/", "--replace", "-s", serve(t, nil, digestOf(nil), nil), "-n", "default")
	if code != ExitUsage || !strings.Contains(stderr, "/ is the root of the file system") {
		t.Errorf("it ends with %d: %s", code, stderr)
	}
}
