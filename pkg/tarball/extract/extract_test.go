// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package extract_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rukpak.io/apiserver/pkg/tarball"
	"rukpak.io/apiserver/pkg/tarball/extract"
)

// entry is one of an archive.
type entry struct {
	name, body string
	mode       fs.FileMode
	link       string
	flag       byte
}

// archive makes a canonical archive.
func archive(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	if _, err := tarball.Canonicalize(t.Context(), &out, bytes.NewReader(asTheyAre(t, entries...)), tarball.Options{Scratch: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// asTheyAre makes an archive of entries, whatever they say.
func asTheyAre(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	w := tar.NewWriter(zip)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: int64(e.mode), Size: int64(len(e.body)), Linkname: e.link, Typeflag: tar.TypeReg}
		switch {
		case e.flag != 0:
			h.Typeflag = e.flag
		case e.link != "":
			h.Typeflag = tar.TypeSymlink
		case strings.HasSuffix(e.name, "/"):
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestTreeWritesWhatIsInTheArchive(t *testing.T) {
	deep := strings.Repeat("d/", 60) + "file"
	packed := archive(t,
		entry{name: "closed/", mode: 0}, entry{name: "closed/private", body: "p", mode: 0}, entry{name: "open", body: "o", mode: 0o666},
		entry{name: "run", body: "#!", mode: 0o750}, entry{name: "link", link: "closed/private"}, entry{name: "nowhere", link: "missing"},
		entry{name: deep, body: "deep", mode: 0o644}, entry{name: "caf\xe9", body: "c", mode: 0o644})
	for _, test := range []struct {
		name string
		mode func(tarball.Entry) fs.FileMode
		want map[string]fs.FileMode
	}{
		{"for the owner", nil, map[string]fs.FileMode{"closed": 0o700, "closed/private": 0o400, "open": 0o644, "run": 0o750, deep: 0o644, "caf\xe9": 0o644, "link": 0o400}},
		{"for everyone", extract.ForEveryone, map[string]fs.FileMode{"closed": 0o755, "closed/private": 0o444, "open": 0o644, "run": 0o755, "d": 0o755}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			summary, err := extract.Tree(t.Context(), bytes.NewReader(packed), dir, extract.Options{Mode: test.mode})
			if err != nil || summary.Files != 7 || summary.Disk < 68*4096 {
				t.Errorf("%+v, %v", summary, err)
			}
			for name, want := range test.want {
				info, err := os.Stat(filepath.Join(dir, name))
				if err != nil || info.Mode().Perm() != want {
					t.Errorf("%q: %v, %v", name, info, err)
				}
			}
			if target, err := os.Readlink(filepath.Join(dir, "nowhere")); target != "missing" {
				t.Errorf("%q, %v", target, err)
			}
			if raw, err := os.ReadFile(filepath.Join(dir, deep)); string(raw) != "deep" {
				t.Errorf("%q, %v", raw, err)
			}
		})
	}
}

func TestTreeRefusesWhatIsNoCanonicalArchive(t *testing.T) {
	packed := archive(t, entry{name: "a", body: strings.Repeat("a", 10_000), mode: 0o644}, entry{name: "b", body: "b", mode: 0o644})
	if _, err := extract.Tree(t.Context(), bytes.NewReader(packed[:len(packed)-10]), t.TempDir(), extract.Options{}); err == nil {
		t.Error("an archive that breaks off was taken")
	}
	if _, err := extract.Tree(t.Context(), strings.NewReader("no archive"), t.TempDir(), extract.Options{}); !errors.Is(err, tarball.ErrNotCanonical) {
		t.Error(err)
	}
	var limit *tarball.LimitError
	if _, err := extract.Tree(t.Context(), bytes.NewReader(packed), t.TempDir(), extract.Options{Limits: tarball.Limits{Files: 1}}); !errors.As(err, &limit) {
		t.Error(err)
	}
}

func TestTreeWritesOverNothing(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	// Somebody else made a link where a directory of the archive is to be.
	if err := os.Symlink(outside, filepath.Join(dir, "sub")); err != nil {
		t.Fatal(err)
	}
	packed := archive(t, entry{name: "sub/file", body: "x", mode: 0o644})
	_, err := extract.Tree(t.Context(), bytes.NewReader(packed), dir, extract.Options{})
	if !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), `"sub"`) {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(outside); len(left) != 0 || err != nil {
		t.Errorf("it wrote outside: %v, %v", left, err)
	}
}

func TestTreeWithExactPermissionsIsTheArchive(t *testing.T) {
	dir := t.TempDir()
	packed := archive(t,
		entry{name: "closed/", mode: 0o555}, entry{name: "closed/in/", mode: 0o500}, entry{name: "closed/in/it", body: "text", mode: 0o640},
		entry{name: "run", body: "#!", mode: 0o755}, entry{name: "link", link: "closed/in"})
	summary, err := extract.Tree(t.Context(), bytes.NewReader(packed), dir, extract.Options{Mode: extract.Exact})
	if err != nil || summary.Files != 3 || summary.Size != int64(len(packed)) {
		t.Fatalf("%+v, %v", summary, err)
	}
	again, err := tarball.Pack(t.Context(), io.Discard, dir, "", tarball.Limits{})
	if err != nil || again.UncompressedDigest != summary.UncompressedDigest {
		t.Errorf("packed again it is %+v, the archive %+v: %v", again, summary, err)
	}
	if err := extract.Remove(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// Whatever the archive says, nothing is written outside.
func TestTreeStaysInside(t *testing.T) {
	for _, test := range []struct {
		name    string
		entries []entry
	}{
		{"above", []entry{{name: "../evil", body: "x"}}},
		{"absolute", []entry{{name: "/evil", body: "x"}}},
		{"through a link", []entry{{name: "up", link: ".."}, {name: "up/evil", body: "x"}}},
		{"through a link to elsewhere", []entry{{name: "up", link: "/tmp"}, {name: "up/evil", body: "x"}}},
		{"a hard link", []entry{{name: "evil", flag: tar.TypeLink, link: "../secret"}}},
		{"a device", []entry{{name: "evil", flag: tar.TypeChar}}},
		{"twice", []entry{{name: "a", body: "x"}, {name: "a", body: "y"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			parent := t.TempDir()
			dir := filepath.Join(parent, "dir")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if _, err := extract.Tree(t.Context(), bytes.NewReader(asTheyAre(t, test.entries...)), dir, extract.Options{Mode: extract.Exact}); err == nil {
				t.Error("it was taken")
			}
			if left, err := os.ReadDir(parent); err != nil || len(left) != 1 {
				t.Errorf("outside there is %v: %v", left, err)
			}
		})
	}
}

// An error says whose it is: the archive's, the folder's, or the caller's.
func TestTreeErrors(t *testing.T) {
	packed := archive(t, entry{name: "a", body: strings.Repeat("x", 1<<20), mode: 0o644}, entry{name: "b", body: "x", mode: 0o644})
	tree := func(ctx context.Context, packed []byte, dir string) error {
		_, err := extract.Tree(ctx, bytes.NewReader(packed), dir, extract.Options{})
		return err
	}
	if err := tree(t.Context(), packed[:len(packed)/2], t.TempDir()); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("half an archive: %v", err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "b"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := tree(t.Context(), packed, dir); !errors.Is(err, fs.ErrExist) || errors.Is(err, tarball.ErrNotCanonical) {
		t.Errorf("something is in the way: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tree(ctx, packed, t.TempDir()); !errors.Is(err, context.Canceled) {
		t.Errorf("it was told to stop: %v", err)
	}
}

func TestSyncTakesAnyFolder(t *testing.T) {
	if err := extract.Sync(t.TempDir()); err != nil {
		t.Error(err)
	}
	if err := extract.Sync(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
