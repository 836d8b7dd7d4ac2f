// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundleclient_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"rukpak.io/apiserver/pkg/bundleclient"
	"rukpak.io/apiserver/pkg/bundleclient/bundletest"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/tarball"
)

// openCache opens a cache in a folder of its own.
func openCache(t *testing.T, dir string, max int64) *bundleclient.Cache {
	t.Helper()
	cache, err := bundleclient.OpenCache(dir, bundleclient.CacheOptions{MaxBytes: max})
	if err != nil {
		t.Fatal(err)
	}
	return cache
}

// Without a cache a temporary folder is needed, and whoever has none learns what to do.
func TestOpenWithoutAPlaceForTemporaryFiles(t *testing.T) {
	a := startAPI(t)
	a.Put("team/app", files("one", 3), true)
	none := filepath.Join(t.TempDir(), "none")
	t.Setenv("TMPDIR", none)
	_, err := clientOf(t, a, bundleclient.Options{}).Open(t.Context(), "team", "app", bundleclient.OpenOptions{})
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), `bundle "team/app"`) || !strings.Contains(err.Error(), none+": mount a volume there, or open a cache") {
		t.Error(err)
	}
}

func TestContentIsAFileSystem(t *testing.T) {
	for name, opts := range map[string]bundleclient.Options{
		"cached": {Cache: openCache(t, t.TempDir(), 0)}, "not cached": {},
	} {
		t.Run(name, func(t *testing.T) {
			a := startAPI(t)
			tree := files("one", 20)
			tree["bin/run"] = &fstest.MapFile{Data: []byte("#!"), Mode: 0o550}
			tree["secret/none"] = &fstest.MapFile{Mode: 0}
			a.Put("team/app", tree, true)
			got, err := clientOf(t, a, opts).Open(t.Context(), "team", "app", bundleclient.OpenOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if err := fstest.TestFS(got.FS(), slices.Collect(maps.Keys(tree))...); err != nil {
				t.Error(err)
			}
			if mark, err := fs.ReadFile(got.FS(), "latest/000.txt"); string(mark) != "one" {
				t.Errorf("through a link: %q, %v", mark, err)
			}
			if target, err := fs.ReadLink(got.FS(), "latest"); target != "data" {
				t.Errorf("the link leads to %q, %v", target, err)
			}
			if info, err := fs.Stat(got.FS(), "bin/run"); err != nil || info.Mode() != 0o550 {
				t.Errorf("%v, %v", info, err)
			}
			dir := got.Dir()
			if err := got.Close(); err != nil {
				t.Error(err)
			}
			if _, err := fs.ReadFile(got.FS(), "data/000.txt"); !errors.Is(err, fs.ErrClosed) {
				t.Errorf("closed files are read: %v", err)
			}
			if _, err := os.Stat(dir); (err == nil) != (name == "cached") {
				t.Errorf("the folder of files that were closed: %v", err)
			}
		})
	}
}

func TestOpenAsksEachTimeAndFetchesOnce(t *testing.T) {
	a := startAPI(t)
	digest := a.Put("team/app", files("one", 3), true)
	a.Put("other/app", files("one", 3), true)
	client := clientOf(t, a, bundleclient.Options{Cache: openCache(t, t.TempDir(), 0)})
	for _, namespace := range []string{"team", "team", "other"} {
		got, err := client.Open(t.Context(), namespace, "app", bundleclient.OpenOptions{})
		if err != nil || got.Digest != digest {
			t.Fatal(got, err)
		}
		if err := got.Close(); err != nil {
			t.Error(err)
		}
	}
	if asked, fetched := a.Count("bytes=0-0"), a.Count("content?digest="); asked != 3 || fetched != 1 {
		t.Errorf("asked %d times, fetched %d times", asked, fetched)
	}
	// What is in the cache is not for those who may not read it.
	if _, err := client.Open(t.Context(), "none", "app", bundleclient.OpenOptions{Digest: digest}); !apierrors.IsNotFound(err) {
		t.Errorf("content of a bundle that is not there: %v", err)
	}
}

func TestAnEarlierContentIsOpened(t *testing.T) {
	a := startAPI(t)
	first := a.Put("team/app", files("one", 3), true)
	a.Put("team/app", files("two", 3), true)
	got, err := clientOf(t, a, bundleclient.Options{}).Open(t.Context(), "team", "app", bundleclient.OpenOptions{Digest: first})
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if mark, err := markOf(got.FS()); mark != "one" {
		t.Errorf("%q, %v", mark, err)
	}
}

func TestDamagedContentIsNotSeen(t *testing.T) {
	dir := t.TempDir()
	for name, opts := range map[string]bundleclient.Options{"cached": {Cache: openCache(t, dir, 0)}, "not cached": {}} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			a := startAPI(t)
			a.Fail(bundletest.Faults{Damage: true})
			a.Put("team/app", files("one", 3), true)
			opts.Patience = -1
			if _, err := clientOf(t, a, opts).Open(t.Context(), "team", "app", bundleclient.OpenOptions{}); err == nil {
				t.Error("damaged content was opened")
			}
			for _, dir := range []string{dir, os.TempDir()} {
				if left, err := os.ReadDir(dir); len(left) > 0 {
					t.Errorf("there is left in %s: %v, %v", dir, left, err)
				}
			}
		})
	}
}

func TestLimitsHold(t *testing.T) {
	a := startAPI(t)
	a.Put("team/app", files("one", 3), true)
	for name, opts := range map[string]bundleclient.Options{
		"cached":     {Cache: openCache(t, t.TempDir(), 2000)},
		"not cached": {Limits: tarball.Limits{Files: 2}},
	} {
		var limit *tarball.LimitError
		if _, err := clientOf(t, a, opts).Open(t.Context(), "team", "app", bundleclient.OpenOptions{}); !errors.As(err, &limit) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStreamIsTheArchive(t *testing.T) {
	a := startAPI(t)
	archive := bundletest.Pack(files("one", 3))
	a.PutArchive("team/app", archive, true)
	content, err := clientOf(t, a, bundleclient.Options{}).Stream(t.Context(), "team", "app", typed.GetContentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	if got, err := io.ReadAll(content); err != nil || string(got) != string(archive) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestPushedFilesAreTheContent(t *testing.T) {
	a := startAPI(t)
	client := clientOf(t, a, bundleclient.Options{})
	tree := files("pushed", 50)
	bundle, err := client.Push(context.WithoutCancel(t.Context()), "team", "app", tree, bundleclient.PushOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if want := a.Put("team/other", tree, true); bundle.Status.Content.Digest != want {
		t.Errorf("the content is %s, not %s", bundle.Status.Content.Digest, want)
	}
	got, err := client.Open(t.Context(), "team", "app", bundleclient.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if mark, err := markOf(got.FS()); mark != "pushed" {
		t.Errorf("%q, %v", mark, err)
	}
}
