// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package fetch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"rukpak.io/apiserver/pkg/bundleclient/bundletest"
	"rukpak.io/apiserver/pkg/fetch"
	"rukpak.io/apiserver/pkg/flock"
	"rukpak.io/apiserver/pkg/tarball"
)

// helperVariable makes the test program a process that puts contents into a volume until it is killed.
const helperVariable = "FETCH_TEST_VOLUME"

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperVariable); dir != "" {
		if err := fill(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func fill(dir string) error {
	v, err := fetch.OpenVolume(context.Background(), dir, fetch.VolumeOptions{})
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		digest, archive := generation(fmt.Sprint(os.Getpid(), " ", i), 50)
		if _, err := v.Put(context.Background(), digest, bytes.NewReader(archive)); err != nil {
			return err
		}
		if err := v.Prune(time.Now().Add(time.Second)); err != nil {
			return err
		}
	}
}

// generation is a content whose files all say a mark.
func generation(mark string, n int) (digest string, archive []byte) {
	tree := fstest.MapFS{"run": {Data: []byte("#!"), Mode: 0o500}}
	for i := range n {
		tree[fmt.Sprintf("data/%03d.txt", i)] = &fstest.MapFile{Data: []byte(mark), Mode: 0o600}
	}
	archive = bundletest.Pack(tree)
	summary, err := tarball.Verify(context.Background(), bytes.NewReader(archive), tarball.Limits{}, nil)
	if err != nil {
		panic(err)
	}
	return summary.Digest, archive
}

// read resolves the link once and reads what all files say.
func read(dir string, n int) (mark string, err error) {
	root, err := os.OpenRoot(filepath.Join(dir, "current"))
	if err != nil {
		return "", err
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), "data")
	if err == nil && len(entries) != n {
		err = fmt.Errorf("there are %d files, not %d", len(entries), n)
	}
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		raw, err := root.ReadFile("data/" + e.Name())
		if err != nil {
			return "", err
		}
		if mark != "" && mark != string(raw) {
			return "", fmt.Errorf("file %s says %q, those before %q", e.Name(), raw, mark)
		}
		mark = string(raw)
	}
	return mark, nil
}

func openVolume(t *testing.T, dir string, opts fetch.VolumeOptions) *fetch.Volume {
	t.Helper()
	v, err := fetch.OpenVolume(t.Context(), dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	return v
}

func put(t *testing.T, v *fetch.Volume, mark string, n int) string {
	t.Helper()
	digest, archive := generation(mark, n)
	if changed, err := v.Put(t.Context(), digest, bytes.NewReader(archive)); err != nil || !changed {
		t.Fatal(changed, err)
	}
	return digest
}

func TestNoReaderSeesAMix(t *testing.T) {
	const n, generations = 20, 12
	dir := t.TempDir()
	v := openVolume(t, dir, fetch.VolumeOptions{Grace: time.Hour})
	put(t, v, "first", n)
	done := make(chan struct{})
	var reading sync.WaitGroup
	for range 2 {
		reading.Go(func() {
			for {
				if _, err := read(dir, n); err != nil {
					t.Error(err)
					return
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for i := range generations {
		put(t, v, fmt.Sprint(i), n)
		if err := v.Prune(time.Now()); err != nil {
			t.Error(err)
		}
	}
	close(done)
	reading.Wait()
	if mark, err := read(dir, n); mark != fmt.Sprint(generations-1) {
		t.Errorf("it ends with %q, %v", mark, err)
	}
}

func TestEverybodyReadsTheFiles(t *testing.T) {
	dir := t.TempDir()
	put(t, openVolume(t, dir, fetch.VolumeOptions{}), "one", 1)
	for name, want := range map[string]fs.FileMode{"": 0o755, "data": 0o755, "data/000.txt": 0o644, "run": 0o555} {
		info, err := os.Stat(filepath.Join(dir, "current", name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%q has mode %v, %v", name, info.Mode(), err)
		}
	}
}

// contents are the folders of contents in a volume.
func contents(t *testing.T, dir string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "..*"))
	if err != nil {
		t.Fatal(err)
	}
	all := ""
	for _, name := range names {
		if mark, err := os.ReadFile(filepath.Join(name, "data/000.txt")); err == nil {
			all += string(mark)
		}
	}
	return all
}

func TestOldContentStaysForAWhile(t *testing.T) {
	for name, c := range map[string]struct {
		opts  fetch.VolumeOptions
		after time.Duration
		want  string
	}{
		"none is kept":               {want: "d"},
		"some are kept":              {opts: fetch.VolumeOptions{Keep: 2}, want: "bcd"},
		"in the time of grace":       {opts: fetch.VolumeOptions{Grace: time.Minute}, after: 50 * time.Second, want: "abcd"},
		"after the time of grace":    {opts: fetch.VolumeOptions{Grace: time.Minute}, after: 70 * time.Second, want: "d"},
		"one is kept after the time": {opts: fetch.VolumeOptions{Keep: 1, Grace: time.Minute}, after: 70 * time.Second, want: "cd"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			v := openVolume(t, dir, c.opts)
			for _, mark := range []string{"a", "b", "c", "d"} {
				put(t, v, mark, 1)
			}
			if err := v.Prune(time.Now().Add(c.after)); err != nil {
				t.Fatal(err)
			}
			got := contents(t, dir)
			if len(got) != len(c.want) || strings.Trim(got, c.want) != "" {
				t.Errorf("there are %q", got)
			}
		})
	}
}

func TestLockedContentStays(t *testing.T) {
	dir := t.TempDir()
	v := openVolume(t, dir, fetch.VolumeOptions{})
	put(t, v, "a", 1)
	f, err := os.Open(filepath.Join(dir, "current"))
	if err != nil {
		t.Fatal(err)
	}
	if err := flock.Try(f, flock.Shared); err != nil {
		t.Fatal(err)
	}
	put(t, v, "b", 1)
	for _, want := range []int{2, 1} {
		if err := v.Prune(time.Now()); err != nil {
			t.Fatal(err)
		}
		if got := contents(t, dir); len(got) != want {
			t.Errorf("there are %q", got)
		}
		// The second time nobody has it locked.
		_ = f.Close()
	}
}

func TestContentComesBack(t *testing.T) {
	dir := t.TempDir()
	v := openVolume(t, dir, fetch.VolumeOptions{Keep: 1})
	digest := put(t, v, "a", 1)
	put(t, v, "b", 1)
	// It is there: nothing is read.
	if changed, err := v.Put(t.Context(), digest, nil); err != nil || !changed {
		t.Fatal(changed, err)
	}
	if mark, err := read(dir, 1); mark != "a" {
		t.Errorf("%q, %v", mark, err)
	}
	if changed, err := v.Put(t.Context(), digest, nil); err != nil || changed {
		t.Error(changed, err)
	}
}

// What has the name of a content and is none is not taken for it, and neither followed nor removed.
func TestWhatIsForeignIsNoContent(t *testing.T) {
	digest, archive := generation("a", 1)
	name := ".." + strings.TrimPrefix(digest, "sha256:")
	for kind, plant := range map[string]func(dir, path string) error{
		"a file":          func(_, path string) error { return os.WriteFile(path, []byte("foreign"), 0o600) },
		"a symbolic link": func(dir, path string) error { return os.Symlink(dir, path) },
		"a file of another kind": func(_, path string) error {
			return syscall.Mkfifo(path, 0o600)
		},
	} {
		t.Run(kind, func(t *testing.T) {
			dir, elsewhere := t.TempDir(), t.TempDir()
			v := openVolume(t, dir, fetch.VolumeOptions{})
			path := filepath.Join(dir, name)
			if err := plant(elsewhere, path); err != nil {
				t.Fatal(err)
			}
			changed, err := v.Put(t.Context(), digest, bytes.NewReader(archive))
			if changed || !errors.Is(err, fetch.ErrForeign) || !strings.Contains(err.Error(), path+" is "+kind) {
				t.Errorf("%t, %v", changed, err)
			}
			if err := v.Prune(time.Now().Add(time.Hour)); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(path); err != nil {
				t.Errorf("it is gone: %v", err)
			}
			// As what is current it is no content either.
			if err := os.Symlink(name, filepath.Join(dir, "current")); err != nil {
				t.Fatal(err)
			}
			if got, err := fetch.Current(dir); got != "" || !errors.Is(err, fetch.ErrForeign) {
				t.Errorf("%q is current, %v", got, err)
			}
		})
	}
}

func TestContentThatBreaksOffLeavesTheOldOne(t *testing.T) {
	dir := t.TempDir()
	v := openVolume(t, dir, fetch.VolumeOptions{})
	put(t, v, "a", 1)
	digest, archive := generation("b", 10)
	if _, err := v.Put(t.Context(), digest, bytes.NewReader(archive[:len(archive)/2])); err == nil {
		t.Error("half of an archive was taken")
	}
	if mark, err := read(dir, 1); mark != "a" {
		t.Errorf("%q, %v", mark, err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*.new")); len(left) > 0 || err != nil {
		t.Errorf("there is left %q, %v", left, err)
	}
}

func TestTheVolumeSurvivesBeingKilled(t *testing.T) {
	dir := t.TempDir()
	before := ""
	for range 8 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), helperVariable+"="+dir)
		var problems bytes.Buffer
		cmd.Stderr = &problems
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); ; {
			// Somewhere in the middle of the next one.
			if digest, err := fetch.Current(dir); err == nil && digest != "" && digest != before {
				before = digest
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("nothing is put: %s", problems.String())
			}
			time.Sleep(time.Millisecond)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if _, err := read(dir, 50); err != nil {
			t.Errorf("after a kill: %v", err)
		}
	}
	v := openVolume(t, dir, fetch.VolumeOptions{})
	put(t, v, "last", 50)
	if err := v.Prune(time.Now().Add(time.Second)); err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(dir)
	if len(entries) != 3 || err != nil { // the content, the link and the lock
		t.Errorf("there is left %v, %v", entries, err)
	}
}

func TestOneWritesAtATime(t *testing.T) {
	dir := t.TempDir()
	v := openVolume(t, dir, fetch.VolumeOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := fetch.OpenVolume(ctx, dir, fetch.VolumeOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second one opened it: %v", err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	openVolume(t, dir, fetch.VolumeOptions{})
}
