// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package filesystem_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/contenttest"
	"rukpak.io/apiserver/pkg/content/filesystem"
)

// Folders that tell a process of this test binary to be somebody else.
const (
	childFolder = "FILESYSTEM_TEST_CHILD" // a writer that is going to be killed
	smallDisk   = "FILESYSTEM_TEST_SMALL" // a writer on a disk of one megabyte
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childFolder); dir != "" {
		exit(child(dir))
	}
	if dir := os.Getenv(smallDisk); dir != "" {
		exit(fillSmallDisk(dir))
	}
	os.Exit(m.Run())
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func child(dir string) error {
	s, err := filesystem.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(contenttest.Child(s), s.Close())
}

func TestStore(t *testing.T) {
	contenttest.Run(t, func(t *testing.T) contenttest.Harness {
		dir := filepath.Join(t.TempDir(), "made", "by", "open")
		return contenttest.Harness{
			Open: func(t *testing.T) (content.Store, func() error) {
				s := open(t, dir)
				return s, s.Close
			},
			Failpoints: []string{"content/after-create", "content/after-write", "content/before-rename", "content/after-rename", "content/after-dirsync"},
			Debris:     func(t *testing.T) []string { return debris(t, dir) },
			Child: func(t *testing.T) *exec.Cmd {
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				cmd.Env = append(os.Environ(), childFolder+"="+dir)
				return cmd
			},
		}
	})
}

func open(t testing.TB, dir string) *filesystem.Store {
	t.Helper()
	s, err := filesystem.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var expected = regexp.MustCompile(`^(\.|lock|mark|tmp|(blobs|index)|(blobs|index)/sha256|(blobs|index)/sha256/[0-9a-f]{2}|(blobs|index)/sha256/([0-9a-f]{2})/([0-9a-f]{64}))$`)

// debris names what does not belong there, by name or by mode.
func debris(t *testing.T, dir string) []string {
	t.Helper()
	var left []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		m := expected.FindStringSubmatch(name)
		mode := fs.FileMode(0o600)
		if d.IsDir() {
			mode = 0o700
		}
		if m == nil || info.Mode().Perm() != mode || (m[6] != "" && m[7][:2] != m[6]) {
			left = append(left, fmt.Sprintf("%s %v", name, info.Mode()))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return left
}

func TestOpenTwice(t *testing.T) {
	dir := t.TempDir()
	first := open(t, dir)
	w, err := first.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if second, err := filesystem.Open(dir); !errors.Is(err, filesystem.ErrInUse) {
		t.Fatalf("a second store on the same folder: %v, %v", second, err)
	}
	// The attempt swept nothing.
	if err := w.Commit(t.Context(), w.Digest()); err != nil {
		t.Error(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := open(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
}

func TestOpenSweepsAndKeepsWhatIsNotItsOwn(t *testing.T) {
	dir := t.TempDir()
	if err := open(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(dir, "lost+found")
	inside := filepath.Join(dir, "blobs", "sha256", "ab", "notes")
	stale := filepath.Join(dir, "tmp", "blob-1", "deep")
	for _, path := range []string{foreign, inside, stale} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, dir)
	defer s.Close()
	if entries, err := os.ReadDir(filepath.Join(dir, "tmp")); err != nil || len(entries) != 0 {
		t.Errorf("tmp holds %v, %v", entries, err)
	}
	for _, path := range []string{foreign, inside} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("what is not ours was touched: %v", err)
		}
	}
	if err := s.Walk(t.Context(), func(info content.Info) error {
		t.Errorf("walk visits %s", info.Digest)
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestOpenOnAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := filesystem.Open(path); !errors.Is(err, syscall.ENOTDIR) {
		t.Fatalf("got %v", err)
	}
}

func TestFileSeeksInsideItsRange(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	b := contenttest.Blob{Seed: 1, Size: 100}
	digest, err := b.Put(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Open(t.Context(), digest, 10, 20)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	f, ok := r.(*filesystem.File)
	if !ok {
		t.Fatalf("got a %T", r)
	}
	if end, err := f.Seek(0, 2); err != nil || end != 20 || f.Size() != 20 {
		t.Errorf("the end is at %d, the size %d, %v", end, f.Size(), err)
	}
	if _, err := f.Seek(19, 0); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 2)
	if n, err := f.Read(got); err != nil || n != 1 || got[0] != b.Bytes(t)[29] {
		t.Errorf("the last byte of the range: %d bytes, %v", n, err)
	}
}

func TestSpace(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	free, total, err := s.Space(t.Context())
	if err != nil || total == 0 || free > total {
		t.Fatalf("%d of %d bytes are free, %v", free, total, err)
	}
}
