// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package extract

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
	"testing"

	"rukpak.io/apiserver/pkg/tarball"
)

type entry struct {
	name, body, link string
	flag             byte
	mode             int64
}

// archive makes a tar.gz of entries, canonical or as they are.
func archive(t *testing.T, canonical bool, entries ...entry) []byte {
	t.Helper()
	var raw, out bytes.Buffer
	zip := gzip.NewWriter(&raw)
	w := tar.NewWriter(zip)
	for _, e := range entries {
		if e.flag == 0 {
			e.flag = tar.TypeReg
		}
		if err := w.WriteHeader(&tar.Header{Name: e.name, Typeflag: e.flag, Linkname: e.link, Size: int64(len(e.body)), Mode: e.mode}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	if !canonical {
		return raw.Bytes()
	}
	if _, err := tarball.Canonicalize(t.Context(), &out, &raw, tarball.Options{Scratch: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestArchive(t *testing.T) {
	dir := t.TempDir()
	packed := archive(t, true,
		entry{name: "closed", flag: tar.TypeDir, mode: 0o555}, entry{name: "closed/in/it", body: "text", mode: 0o640},
		entry{name: "run", body: "#!", mode: 0o755}, entry{name: "link", flag: tar.TypeSymlink, link: "closed/in"})
	summary, err := Archive(t.Context(), bytes.NewReader(packed), dir)
	if err != nil || summary.Files != 3 || summary.Size != int64(len(packed)) {
		t.Fatalf("%+v, %v", summary, err)
	}
	// Packed again it is the same.
	again, err := tarball.Pack(t.Context(), io.Discard, dir, "", tarball.Limits{})
	if err != nil || again.UncompressedDigest != summary.UncompressedDigest {
		t.Errorf("the folder is %+v, the archive %+v: %v", again, summary, err)
	}
	if err := Remove(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// Whatever the archive says, nothing is written outside.
func TestArchiveStaysInside(t *testing.T) {
	for _, test := range []struct {
		name    string
		entries []entry
	}{
		{"above", []entry{{name: "../evil", body: "x"}}},
		{"absolute", []entry{{name: "/evil", body: "x"}}},
		{"through a link", []entry{{name: "up", flag: tar.TypeSymlink, link: ".."}, {name: "up/evil", body: "x"}}},
		{"through a link to elsewhere", []entry{{name: "up", flag: tar.TypeSymlink, link: "/tmp"}, {name: "up/evil", body: "x"}}},
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
			if _, err := Archive(t.Context(), bytes.NewReader(archive(t, false, test.entries...)), dir); err == nil {
				t.Error("it was taken")
			}
			if left, err := os.ReadDir(parent); err != nil || len(left) != 1 {
				t.Errorf("outside there is %v: %v", left, err)
			}
		})
	}
}

// An error says whose it is: the archive's or the folder's.
func TestArchiveErrors(t *testing.T) {
	packed := archive(t, true, entry{name: "a", body: string(make([]byte, 1<<20))}, entry{name: "b", body: "x"})
	dir := t.TempDir()
	if _, err := Archive(t.Context(), bytes.NewReader(packed[:len(packed)/2]), dir); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("half an archive: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "b"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "a")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if _, err := Archive(t.Context(), bytes.NewReader(packed), dir); !errors.Is(err, fs.ErrExist) {
		t.Errorf("something is in the way: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Archive(ctx, bytes.NewReader(packed), t.TempDir()); !errors.Is(err, context.Canceled) {
		t.Errorf("it was told to stop: %v", err)
	}
}
