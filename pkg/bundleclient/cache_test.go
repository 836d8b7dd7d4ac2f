// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundleclient_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"k8s.io/client-go/rest"

	"rukpak.io/apiserver/pkg/bundleclient"
	"rukpak.io/apiserver/pkg/bundleclient/bundletest"
	"rukpak.io/apiserver/pkg/flock"
)

// helperVariable makes the test program a process that opens a bundle, says that it has it, and waits until its standard
// input ends.
const helperVariable = "BUNDLECLIENT_TEST_OPEN" // HOST DIR

func TestMain(m *testing.M) {
	if host, dir, ok := strings.Cut(os.Getenv(helperVariable), " "); ok {
		if err := help(host, dir); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func help(host, dir string) error {
	cache, err := bundleclient.OpenCache(dir, bundleclient.CacheOptions{})
	if err != nil {
		return err
	}
	client, err := bundleclient.NewForConfig(&rest.Config{Host: host}, bundleclient.Options{Cache: cache})
	if err != nil {
		return err
	}
	got, err := client.Open(context.Background(), "team", "app", bundleclient.OpenOptions{})
	if err != nil {
		return err
	}
	fmt.Println(got.Digest)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// reader is another process that has a bundle open.
type reader struct {
	cmd   *exec.Cmd
	stdin io.Closer
	lines *bufio.Reader
}

func startReader(t *testing.T, a *bundletest.API, dir string) *reader {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperVariable+"="+a.URL+" "+dir)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := &reader{cmd: cmd, stdin: stdin, lines: bufio.NewReader(stdout)}
	t.Cleanup(r.kill)
	return r
}

// digest waits until it has the bundle.
func (r *reader) digest(t *testing.T) string {
	t.Helper()
	line, err := r.lines.ReadString('\n')
	if err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	return strings.TrimSpace(line)
}

func (r *reader) kill() {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
}

// kept are the names of the contents in a cache's folder, and of all that is half-done.
func kept(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".lock" {
			names = append(names, e.Name())
		}
	}
	return names
}

// sized is a tree of about so many bytes, and other files for each mark.
func sized(mark string, bytes int) fstest.MapFS {
	return fstest.MapFS{"data/file": {Data: []byte(mark + strings.Repeat("x", bytes)), Mode: 0o644}}
}

func TestManyOpenAndOneFetches(t *testing.T) {
	a, dir := startAPI(t), t.TempDir()
	digest := a.Put("team/app", files("one", 50), true)
	var readers []*reader
	for range 3 {
		readers = append(readers, startReader(t, a, dir))
	}
	var opening sync.WaitGroup
	for range 8 {
		client := clientOf(t, a, bundleclient.Options{Cache: openCache(t, dir, 0)})
		opening.Go(func() {
			got, err := client.Open(t.Context(), "team", "app", bundleclient.OpenOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			if mark, err := markOf(got.FS()); mark != "one" {
				t.Errorf("%q, %v", mark, err)
			}
			if err := got.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	opening.Wait()
	for _, r := range readers {
		if got := r.digest(t); got != digest {
			t.Errorf("another process has %s", got)
		}
	}
	if n := a.Count("content?digest="); n != 1 {
		t.Errorf("it was fetched %d times", n)
	}
}

// Who finds no files, and has somebody else fetch them before it can, does not wait for that one to have read them.
func TestWhoComesSecondReadsWithWhoCameFirst(t *testing.T) {
	a, dir, other := startAPI(t), t.TempDir(), t.TempDir()
	digest := a.Put("team/app", files("one", 50), true)
	name := strings.TrimPrefix(digest, "sha256:")
	first, err := flock.Open(t.Context(), filepath.Join(dir, name+".lock"), flock.Shared)
	if err != nil {
		t.Fatal(err)
	}
	opened := make(chan error, 1)
	asked := a.Count("bundles/app")
	client := clientOf(t, a, bundleclient.Options{Cache: openCache(t, dir, 0)})
	go func() {
		got, err := client.Open(t.Context(), "team", "app", bundleclient.OpenOptions{})
		if err == nil {
			err = got.Close()
		}
		opened <- err
	}()
	for a.Count("bundles/app") == asked {
		runtime.Gosched()
	}
	// It looks, and finds nothing, in this time. Were it slower, it would only find it easier.
	time.Sleep(200 * time.Millisecond)
	open(t, clientOf(t, a, bundleclient.Options{Cache: openCache(t, other, 0)}), "app")
	if err := os.Rename(filepath.Join(other, name), filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
	select {
	case err = <-opened:
	case <-time.After(30 * time.Second):
		err = errors.New("it waits for the first one to close its files")
	}
	if err := errors.Join(err, first.Close()); err != nil {
		t.Error(err)
	}
}

// open opens a bundle and returns what closes it.
func open(t *testing.T, client *bundleclient.Client, name string) *bundleclient.Files {
	t.Helper()
	got, err := client.Open(t.Context(), "team", name, bundleclient.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestTheCacheIsBoundedAndKeepsWhatIsRead(t *testing.T) {
	a, dir := startAPI(t), t.TempDir()
	client := clientOf(t, a, bundleclient.Options{Cache: openCache(t, dir, 450_000)})
	for _, name := range []string{"app", "b", "c", "d", "e"} {
		a.Put("team/"+name, sized(name, 100_000), true)
	}
	other := startReader(t, a, dir)
	other.digest(t)
	b := open(t, client, "b")
	for _, name := range []string{"c", "d"} {
		if err := open(t, client, name).Close(); err != nil {
			t.Error(err)
		}
	}
	if names := kept(t, dir); len(names) != 4 {
		t.Fatalf("there is %q", names)
	}
	// Of those that nobody reads, c was used longer ago than d.
	c, d := open(t, client, "c"), open(t, client, "d")
	for _, f := range []*bundleclient.Files{c, d} {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := open(t, client, "e").Close(); err != nil {
		t.Error(err)
	}
	has := func(f string) bool {
		_, err := os.Stat(filepath.Join(dir, strings.TrimPrefix(f, "sha256:"), "files"))
		return err == nil
	}
	if !has(b.Digest) || has(c.Digest) || !has(d.Digest) || len(kept(t, dir)) != 4 {
		t.Errorf("there is %q; b is %s, c %s, d %s", kept(t, dir), b.Digest, c.Digest, d.Digest)
	}
	if _, err := fs.ReadFile(b.FS(), "data/file"); err != nil {
		t.Error(err)
	}
	// Whoever is killed reads nothing any more.
	other.kill()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	openCache(t, dir, 1)
	if names := kept(t, dir); len(names) != 0 {
		t.Errorf("there is %q", names)
	}
	if entries, err := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("there is %v, %v", entries, err)
	}
}

func TestWhatIsInUseMayBeMoreThanTheBound(t *testing.T) {
	a, dir := startAPI(t), t.TempDir()
	client := clientOf(t, a, bundleclient.Options{Cache: openCache(t, dir, 150_000)})
	for _, name := range []string{"a", "b"} {
		a.Put("team/"+name, sized(name, 100_000), true)
		defer open(t, client, name).Close()
	}
	if names := kept(t, dir); len(names) != 2 {
		t.Errorf("there is %q", names)
	}
}

func TestWhatIsHalfDoneIsClearedAway(t *testing.T) {
	a, dir := startAPI(t), t.TempDir()
	digest := a.Put("team/app", files("one", 3), true)
	place := filepath.Join(dir, strings.TrimPrefix(digest, "sha256:"))
	for _, left := range []string{place + ".new/files", strings.Repeat("ab", 32) + ".new/files", strings.Repeat("cd", 32) + ".old/files"} {
		if !filepath.IsAbs(left) {
			left = filepath.Join(dir, left)
		}
		if err := os.MkdirAll(left, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(left, "half"), []byte("ha"), 0o400); err != nil {
			t.Fatal(err)
		}
	}
	client := clientOf(t, a, bundleclient.Options{Cache: openCache(t, dir, 0)})
	if names := kept(t, dir); len(names) != 0 {
		t.Errorf("there is left %q", names)
	}
	got := open(t, client, "app")
	defer got.Close()
	if _, err := fs.Stat(got.FS(), "half"); err == nil {
		t.Error("what was left half-done became part of the content")
	}
}

func TestNoDigestIsAPath(t *testing.T) {
	a := startAPI(t)
	a.Put("team/app", files("one", 3), true)
	client := clientOf(t, a, bundleclient.Options{Cache: openCache(t, t.TempDir(), 0)})
	for _, digest := range []string{"sha256:../../x", "sha256:" + strings.Repeat("A", 64), strings.Repeat("a", 64)} {
		if _, err := client.Open(t.Context(), "team", "app", bundleclient.OpenOptions{Digest: digest}); err == nil {
			t.Errorf("%q was opened", digest)
		}
	}
}

// TestCacheFolderIsEmptied has somebody take the files out of a content, as what cleans temporary folders does.
func TestCacheFolderIsEmptied(t *testing.T) {
	a, dir := startAPI(t), t.TempDir()
	digest := a.Put("team/app", fstest.MapFS{"f": {Data: []byte("x")}}, true)
	cache, err := bundleclient.OpenCache(dir, bundleclient.CacheOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := bundleclient.NewForConfig(&rest.Config{Host: a.URL}, bundleclient.Options{Cache: cache})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got, err := client.Open(t.Context(), "team", "app", bundleclient.OpenOptions{})
		if err != nil || got.Digest != digest {
			t.Fatalf("%v, %v", got, err)
		}
		if text, err := fs.ReadFile(got.FS(), "f"); err != nil || string(text) != "x" {
			t.Errorf("%q, %v", text, err)
		}
		if err := got.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(got.Dir()); err != nil {
			t.Fatal(err)
		}
	}
}
