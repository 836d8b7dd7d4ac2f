// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundleclient_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"rukpak.io/apiserver/pkg/bundleclient"
	"rukpak.io/apiserver/pkg/bundleclient/bundletest"
	"rukpak.io/apiserver/pkg/content/listing"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// linked is a tree with links in the middle of paths, whose parents are those of where they lead.
func linked() fstest.MapFS {
	return fstest.MapFS{
		"a/b/c/file":  {Data: []byte("in c"), Mode: 0o644},
		"a/b/run":     {Data: []byte("#!"), Mode: 0o755},
		"a/file":      {Data: []byte("in a"), Mode: 0o600},
		"a/b/c/up":    {Data: []byte("../run"), Mode: fs.ModeSymlink | 0o777},
		"short":       {Data: []byte("a/b/c"), Mode: fs.ModeSymlink | 0o777},
		"self":        {Data: []byte("."), Mode: fs.ModeSymlink | 0o777},
		"to/missing":  {Data: []byte("../nothing"), Mode: fs.ModeSymlink | 0o777},
		"large":       {Data: []byte(strings.Repeat("0123456789", 10_000)), Mode: 0o644},
		"empty":       {Mode: 0o644},
		"odd/%41 ?#é": {Data: []byte("odd"), Mode: 0o644},
		".git/dotted": {Data: []byte("in .git"), Mode: 0o644},
		"git/plain":   {Data: []byte("in git"), Mode: 0o644},
		"..x/.x/...":  {Data: []byte("dots"), Mode: 0o644},
		".hidden/x":   {Data: []byte("there is no hidden"), Mode: 0o644},
	}
}

// remote opens the files of a bundle of an API of its own.
func remote(t *testing.T, tree fs.FS) (*bundletest.API, *bundleclient.RemoteFS) {
	t.Helper()
	a := startAPI(t)
	a.Put("team/app", tree, false)
	files, err := clientOf(t, a, bundleclient.Options{Patience: -1}).OpenRemote(t.Context(), "team", "app", bundleclient.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return a, files
}

func TestRemoteFilesAreAFileSystem(t *testing.T) {
	tree := linked()
	delete(tree, "to/missing") // which nobody can open
	delete(tree, "large")      // of which very many parts would be read
	_, files := remote(t, tree)
	if err := fstest.TestFS(files, "a/b/c/file", "a/b/run", "a/b/c/up", "short", "empty", "odd/%41 ?#é", ".git/dotted", "git/plain", "..x/.x/...", ".hidden/x"); err != nil {
		t.Error(err)
	}
}

func TestRemoteLinksLeadWhereTheServersDo(t *testing.T) {
	_, files := remote(t, linked())
	for name, want := range map[string]string{
		"short/up": "-rwxr-xr-x 2 #!", "self/a/file": "-rw------- 4 in a", "short/file": "-rw-r--r-- 4 in c", "self/self/short/up": "-rwxr-xr-x 2 #!", "empty": "-rw-r--r-- 0 ",
	} {
		info, err := fs.Stat(files, name)
		if err != nil {
			t.Error(err)
			continue
		}
		raw, err := fs.ReadFile(files, name)
		if got := fmt.Sprint(info.Mode(), info.Size(), " ", string(raw)); got != want || err != nil || info.Name() != name[strings.LastIndex(name, "/")+1:] {
			t.Errorf("%s: %q as %s, not %q, %v", name, got, info.Name(), want, err)
		}
	}
	if info, err := fs.Stat(files, "self"); err != nil || !info.IsDir() || info.Name() != "self" {
		t.Errorf("%v, %v", info, err)
	}
	if target, err := fs.ReadLink(files, "short/up"); target != "../run" || err != nil {
		t.Errorf("%q, %v", target, err)
	}
	if info, err := fs.Lstat(files, "a/file"); err != nil || info.Sys().(*listing.Entry).Digest == "" || info.ModTime().Unix() != 0 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestRemoteErrorsAreThoseOfFileSystems(t *testing.T) {
	_, files := remote(t, linked())
	open := func(name string) error { _, err := files.Open(name); return err }
	stat := func(name string) error { _, err := files.Stat(name); return err }
	read := func(name string) error { _, err := files.ReadFile(name); return err }
	list := func(name string) error { _, err := files.ReadDir(name); return err }
	readLink := func(name string) error { _, err := files.ReadLink(name); return err }
	for name, test := range map[string]struct{ got, want error }{
		"open what is not there":     {open("a/none"), fs.ErrNotExist},
		"stat what is not there":     {stat("a/none"), fs.ErrNotExist},
		"stat below what is not":     {stat("none/none"), fs.ErrNotExist},
		"stat below a file":          {stat("a/file/none"), fs.ErrNotExist},
		"stat where a link leads to": {stat("to/missing"), fs.ErrNotExist},
		"read below a file":          {read("a/file/none"), fs.ErrNotExist},
		"list what is not there":     {list("none"), fs.ErrNotExist},
		"list a file":                {list("a/file"), typed.ErrNotDirectory},
		"read a directory":           {read("a"), typed.ErrIsDirectory},
		"read the root":              {read("."), typed.ErrIsDirectory},
		"read a link of none":        {readLink("a/file"), fs.ErrInvalid},
		"open no path":               {open("/a"), fs.ErrInvalid},
		"stat no path":               {stat("a/../a"), fs.ErrInvalid},
		"list no path":               {list(""), fs.ErrInvalid},
	} {
		var path *fs.PathError
		if !errors.Is(test.got, test.want) || !errors.As(test.got, &path) {
			t.Errorf("%s: %v", name, test.got)
		}
	}
}

// One content is read, or none: never files of two.
func TestRemoteFilesAreOfOneContent(t *testing.T) {
	a, files := remote(t, fstest.MapFS{"a": {Data: []byte("one"), Mode: 0o644}, "b": {Data: []byte("one"), Mode: 0o644}})
	f, err := files.Open("a")
	if err != nil {
		t.Fatal(err)
	}
	a.Put("team/app", fstest.MapFS{"a": {Data: []byte("two"), Mode: 0o644}, "b": {Data: []byte("two"), Mode: 0o644}}, true)
	if raw, err := fs.ReadFile(files, "b"); string(raw) != "one" || err != nil {
		t.Errorf("%q, %v", raw, err)
	}
	a.Put("team/app", fstest.MapFS{"a": {Data: []byte("three"), Mode: 0o644}}, false)
	for name, err := range map[string]error{
		"read": func() error { _, err := fs.ReadFile(files, "b"); return err }(),
		"list": func() error { _, err := fs.ReadDir(files, "."); return err }(),
		"part": func() error { _, err := f.(io.ReaderAt).ReadAt(make([]byte, 1), 1); return err }(),
	} {
		if !apierrors.IsNotFound(err) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s of a content that is gone: %v", name, err)
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if err := f.Close(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
	if _, err := f.Read(make([]byte, 1)); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("read when it is closed: %v", err)
	}
}

func TestRemoteFilesAreReadInParts(t *testing.T) {
	a, files := remote(t, linked())
	f, err := files.Open("large")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	before := a.Count("/content/large")
	section := io.NewSectionReader(f.(io.ReaderAt), 50_005, 10)
	if got, err := io.ReadAll(section); string(got) != "5678901234" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	seeker := f.(io.ReadSeeker)
	if at, err := seeker.Seek(-5, io.SeekEnd); at != 99_995 || err != nil {
		t.Errorf("%d, %v", at, err)
	}
	if got, err := io.ReadAll(seeker); string(got) != "56789" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if n := a.Count("/content/large") - before; n != 2 {
		t.Errorf("%d requests", n)
	}
	// What is only sought takes none.
	for range 3 {
		if _, err := seeker.Seek(0, io.SeekStart); err != nil {
			t.Error(err)
		}
	}
	if got, err := io.ReadAll(seeker); len(got) != 100_000 || err != nil {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if n := a.Count("/content/large") - before; n != 3 {
		t.Errorf("%d requests", n)
	}
}

func TestDamagedRemoteFilesAreFound(t *testing.T) {
	a, files := remote(t, linked())
	a.Fail(bundletest.Faults{Damage: true})
	if raw, err := fs.ReadFile(files, "a/file"); !errors.Is(err, typed.ErrDigestMismatch) {
		t.Errorf("%q, %v", raw, err)
	}
}

// A list is read once, whoever wants it, while it is among those that are kept.
func TestRemoteListsAreKept(t *testing.T) {
	tree := fstest.MapFS{}
	for dir := range 3 {
		for i := range 9000 {
			tree[fmt.Sprintf("%d/%d", dir, i)] = &fstest.MapFile{Mode: 0o644}
		}
	}
	a, files := remote(t, tree)
	var many sync.WaitGroup
	for i := range 20 {
		many.Go(func() {
			if _, err := files.Stat(fmt.Sprint("0/", i)); err != nil {
				t.Error(err)
			}
		})
	}
	many.Wait()
	for _, step := range []struct {
		name string
		want int // lists of 0 so far
	}{{"0/8999", 1}, {"1/5", 1}, {"0/5", 1}, {"2/5", 1}, {"0/7", 1}, {"1/7", 1}, {"2/7", 1}, {"0/9", 2}} {
		if _, err := files.Stat(step.name); err != nil {
			t.Error(err)
		}
		if n := a.Count("/content/0?"); n != step.want {
			t.Errorf("after %s: %d lists", step.name, n)
		}
	}
}

// Who waits for the list of a slow directory holds up nobody who wants another, kept or not.
func TestRemoteListsDoNotWaitForEachOther(t *testing.T) {
	a := startAPI(t)
	a.Put("team/app", fstest.MapFS{"kept/a": {Mode: 0o644}, "slow/a": {Mode: 0o644}, "other/a": {Mode: 0o644}}, false)
	asked, others := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if strings.HasSuffix(req.URL.Path, "/content/slow") {
			close(asked)
			select {
			case <-others:
			case <-time.After(10 * time.Second):
				t.Error("the others wait for the slow one")
			}
		}
		a.ServeHTTP(w, req)
	}))
	defer server.Close()
	client, err := bundleclient.NewForConfig(&rest.Config{Host: server.URL}, bundleclient.Options{Patience: -1})
	if err != nil {
		t.Fatal(err)
	}
	files, err := client.OpenRemote(t.Context(), "team", "app", bundleclient.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stat := func(name string) {
		if _, err := files.Stat(name); err != nil {
			t.Error(err)
		}
	}
	stat("kept/a")
	var slow sync.WaitGroup
	slow.Go(func() { stat("slow/a") })
	<-asked
	stat("kept/a")
	stat("other/a")
	close(others)
	slow.Wait()
	stat("slow/a")
	if n := a.Count("/content/slow?"); n != 1 {
		t.Errorf("%d lists of what is slow", n)
	}
}
