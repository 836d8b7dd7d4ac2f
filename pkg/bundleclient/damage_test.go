// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundleclient_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rukpak.io/apiserver/pkg/bundleclient"
	"rukpak.io/apiserver/pkg/flock"
)

// What somebody has taken files out of is fetched anew, also while another reads what is left.
func TestFilesThatAreTakenOutComeBack(t *testing.T) {
	for name, damage := range map[string]func(place string) error{
		"one file":   func(place string) error { return os.Remove(filepath.Join(place, "files/data/001.txt")) },
		"a link":     func(place string) error { return os.Remove(filepath.Join(place, "files/latest")) },
		"a folder":   func(place string) error { return os.Remove(filepath.Join(place, "files/empty")) },
		"the number": func(place string) error { return os.Remove(filepath.Join(place, "entries")) },
		"all files": func(place string) error {
			return errors.Join(os.RemoveAll(filepath.Join(place, "files")), os.Mkdir(filepath.Join(place, "files"), 0o700))
		},
	} {
		for _, read := range []bool{false, true} {
			if read {
				name += ", in use"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				a, dir := startAPI(t), t.TempDir()
				digest := a.Put("team/app", files("one", 3), true)
				client := clientOf(t, a, bundleclient.Options{Cache: openCache(t, dir, 0)})
				first := open(t, client, "app")
				if !read {
					if err := first.Close(); err != nil {
						t.Fatal(err)
					}
				} else {
					defer first.Close()
				}
				if err := damage(filepath.Join(dir, strings.TrimPrefix(digest, "sha256:"))); err != nil {
					t.Fatal(err)
				}
				for range 2 {
					got := open(t, client, "app")
					entries := 0
					err := fs.WalkDir(got.FS(), ".", func(_ string, _ fs.DirEntry, err error) error {
						entries++
						return err
					})
					if entries != 7 || got.Digest != digest {
						t.Errorf("%d entries of %s, %v", entries, got.Digest, err)
					}
					if err := got.Close(); err != nil {
						t.Error(err)
					}
				}
				want := 2 // at first, and once after it was damaged
				if read {
					want = 3 // for each who opens it
				}
				if n := a.Count("content?digest="); n != want {
					t.Errorf("it was fetched %d times, not %d", n, want)
				}
			})
		}
	}
}

// Names in the folder that the cache does not give are nobody's business, whatever may be done there.
func TestWhatIsForeignInTheCacheStays(t *testing.T) {
	a, dir := startAPI(t), t.TempDir()
	a.Put("team/app", files("one", 3), true)
	foreign := []string{"lost+found", "backup.new", "backup.old", "backup.lock", strings.Repeat("AB", 32), strings.Repeat("ab", 32) + ".tar"}
	for _, name := range foreign {
		// As lost+found of a user who may not look inside: a file there fails as that does, for root too.
		if err := os.MkdirAll(filepath.Join(dir, name, "bytes"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		client := clientOf(t, a, bundleclient.Options{Cache: openCache(t, dir, 1<<20)})
		if err := open(t, client, "app").Close(); err != nil {
			t.Error(err)
		}
		openCache(t, dir, 1)
	}
	for _, name := range foreign {
		if _, err := os.Stat(filepath.Join(dir, name, "bytes")); err != nil {
			t.Error(err)
		}
	}
}

// Of a fetch that was killed nothing stays, and a lock that somebody has does.
func TestLocksOfNothingAreClearedAway(t *testing.T) {
	dir := t.TempDir()
	place := func(digit string) string { return filepath.Join(dir, strings.Repeat(digit, 64)) }
	for _, path := range []string{place("a") + ".lock", place("b") + ".lock"} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(place("b")+".new/files", 0o700); err != nil {
		t.Fatal(err)
	}
	held, err := flock.TryOpen(place("c")+".lock", flock.Shared)
	if err != nil {
		t.Fatal(err)
	}
	openCache(t, dir, 0)
	if left, err := os.ReadDir(dir); len(left) != 1 || left[0].Name() != filepath.Base(held.Name()) {
		t.Errorf("there is left %v, %v", left, err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	openCache(t, dir, 0)
	if left, err := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("there is left %v, %v", left, err)
	}
}

// A lock says when a content was used last, and stays with it.
func TestTheLockOfAContentStays(t *testing.T) {
	a, dir := startAPI(t), t.TempDir()
	digest := a.Put("team/app", files("one", 3), true)
	client := clientOf(t, a, bundleclient.Options{Cache: openCache(t, dir, 0)})
	if err := open(t, client, "app").Close(); err != nil {
		t.Fatal(err)
	}
	lock := filepath.Join(dir, strings.TrimPrefix(digest, "sha256:")+".lock")
	used := time.Unix(1_700_000_000, 0)
	if err := os.Chtimes(lock, used, used); err != nil {
		t.Fatal(err)
	}
	openCache(t, dir, 0)
	if info, err := os.Stat(lock); err != nil || !info.ModTime().Equal(used) {
		t.Errorf("%v, %v", info, err)
	}
}
