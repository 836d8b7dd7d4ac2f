// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/listing"
	"rukpak.io/apiserver/pkg/panics"
	"rukpak.io/apiserver/pkg/tarball"
)

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// noise is bytes that do not compress, always the same.
func noise(n int) string {
	b := make([]byte, n)
	for i, x := 0, uint32(1); i < n; i++ {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	return string(b)
}

// library is a content with all that can be in one.
func library(t *testing.T) []byte {
	t.Helper()
	file := func(name, body string) tar.Header {
		return tar.Header{Name: name, Mode: 0o644, Typeflag: tar.TypeReg, Linkname: body}
	}
	link := func(name, target string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}
	}
	return rawArchive(t,
		file("a/b.yaml", "b: 1\n"), file("a/c/d.txt", "d"), file("empty", ""), file("index.html", "<script>"), file("large.bin", noise(700<<10)),
		link("latest", "a"), link("a/up", "../empty"), link("loop", "loop"), link("gone", "nowhere"),
		file("caf\xe9 100%?#.json", "{}"), tar.Header{Name: "void/", Mode: 0o700, Typeflag: tar.TypeDir})
}

// newLibrary is a world with a bundle "app" whose content is the library.
func newLibrary(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.classes["raw"].Limits = &rukpak.ContentLimits{Bytes: ptr.To(resource.MustParse("20Mi"))}
	w.addUpload("app")
	if got := w.do(http.MethodPut, "app", library(t)); got.code != http.StatusCreated {
		t.Fatalf("PUT: %d %s", got.code, got.body)
	}
	return w
}

// plain is the tar in a canonical archive.
func plain(t *testing.T, archive []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestInside(t *testing.T) {
	w := newLibrary(t)
	archive, summary := canonical(t, library(t))
	whole := plain(t, archive)
	large := noise(700 << 10)
	other := strings.Repeat("f", 64)
	const before, modified = "Sun, 09 Sep 2001 01:46:39 GMT", "Sun, 09 Sep 2001 01:46:40 GMT"
	for name, test := range map[string]struct {
		path    string
		headers []string
		code    int
		body    string // if set, the whole body
		header  map[string]string
		says    string // a part of the message of the error
		cause   string
	}{
		"a file": {path: "app/a/b.yaml", code: 200, body: "b: 1\n", header: map[string]string{
			"Content-Type": "application/yaml", "ETag": etag(digestOf([]byte("b: 1\n"))), "Repr-Digest": reprDigest(digestOf([]byte("b: 1\n"))), "Content-Length": "5",
			"Accept-Ranges": "bytes", "X-Content-Type-Options": "nosniff", "Content-Encoding": "", "Content-Location": "",
			"Content-Security-Policy": "default-src 'none'; sandbox", "Last-Modified": modified,
		}},
		"an empty file":             {path: "app/empty", code: 200, header: map[string]string{"Content-Length": "0", "Content-Type": "application/octet-stream"}},
		"HTML is text":              {path: "app/index.html", code: 200, body: "<script>", header: map[string]string{"Content-Type": "text/plain"}},
		"a name of any bytes":       {path: "app/caf%E9%20100%25%3F%23.json", code: 200, body: "{}"},
		"a large file":              {path: "app/large.bin", code: 200, body: large},
		"its end":                   {path: "app/large.bin", headers: []string{"Range", "bytes=-10"}, code: 206, body: large[len(large)-10:]},
		"its middle":                {path: "app/large.bin", headers: []string{"Range", "bytes=600000-600009"}, code: 206, body: large[600000:600010], header: map[string]string{"Content-Range": "bytes 600000-600009/716800"}},
		"beyond its end":            {path: "app/a/b.yaml", headers: []string{"Range", "bytes=5-"}, code: 416, says: "Range", header: map[string]string{"Content-Range": "bytes */5"}},
		"unchanged":                 {path: "app/a/b.yaml", headers: []string{"If-None-Match", etag(digestOf([]byte("b: 1\n")))}, code: 304},
		"another":                   {path: "app/a/b.yaml", headers: []string{"If-Match", etag("sha256:" + other)}, code: 412, says: "a/b.yaml"},
		"by way of a link":          {path: "app/latest/b.yaml", code: 200, body: "b: 1\n", header: map[string]string{"Content-Location": "/app/a/b.yaml"}},
		"by way of two":             {path: "app/latest/up?digest=" + summary.Digest, code: 200, header: map[string]string{"Content-Location": "/app/empty?digest=" + strings.ReplaceAll(summary.Digest, ":", "%3A")}},
		"a link to itself":          {path: "app/loop", code: 404, says: `"loop": too many symbolic links`, cause: "LinkLoop"},
		"a link to nothing":         {path: "app/gone", code: 404, says: `no "gone": "nowhere": file does not exist`, cause: "FileNotFound"},
		"nothing":                   {path: "app/a/x", code: 404, says: `no "a/x"`, cause: "FileNotFound"},
		"below a file":              {path: "app/empty/x", code: 404, says: "not a directory", cause: "FileNotFound"},
		"a file as a directory":     {path: "app/empty/", code: 404, says: "not a directory", cause: "FileNotFound"},
		"another digest":            {path: "app/empty?digest=sha256:" + other, code: 404, says: "not, or no more"},
		"up":                        {path: "app/a/%2E%2E/empty", code: 400, says: `".."`},
		"a name that is too long":   {path: "app/" + strings.Repeat("x", 300), code: 400, says: "it has 300 bytes, and a name has 255 at most"},
		"a component of nothing":    {path: "app/a//b.yaml", code: 400, says: `""`},
		"nothing first":             {path: "app//empty", code: 400, says: `""`},
		"nothing but a slash":       {path: "app//", code: 400},
		"a NUL":                     {path: "app/a%00", code: 404},
		"another format":            {path: "app?format=zip", code: 400, says: `"zip"`},
		"a format of a file":        {path: "app/empty?format=tar", code: 400, says: "format"},
		"an archive, recursive":     {path: "app?recursive=true", code: 400, says: "content/"},
		"a file, recursive":         {path: "app/empty?recursive=true", code: 400, says: `"empty" is no directory`},
		"an archive, after":         {path: "app?after=a", code: 400, says: "content/"},
		"a file, after":             {path: "app/empty?after=a", code: 400, says: `after: "empty" is no directory`},
		"the tar, after":            {path: "app?format=tar&after=a", code: 400, says: "format"},
		"the tar":                   {path: "app?format=tar", code: 200, body: string(whole), header: map[string]string{"Content-Type": "application/x-tar", "ETag": etag(summary.UncompressedDigest), "Content-Length": fmt.Sprint(summary.UncompressedSize)}},
		"a part of the tar":         {path: "app?format=tar", headers: []string{"Range", "bytes=500000-600000"}, code: 206, body: string(whole[500000:600001])},
		"the tar, unchanged":        {path: "app?format=tar", headers: []string{"If-None-Match", etag(summary.UncompressedDigest)}, code: 304},
		"beyond the tar":            {path: "app?format=tar", headers: []string{"Range", "bytes=a-b"}, code: 416, says: "of the tar of the content", header: map[string]string{"Content-Range": fmt.Sprintf("bytes */%d", summary.UncompressedSize)}},
		"another tar":               {path: "app?format=tar", headers: []string{"If-Match", etag("sha256:" + other)}, code: 412, says: "the tar of the content"},
		"two parts":                 {path: "app/large.bin", headers: []string{"Range", "bytes=0-1,600000-600001"}, code: 206},
		"a directory":               {path: "app/a", code: 200, header: map[string]string{"Content-Type": "application/json", "ETag": "W/" + etag(summary.Digest)}},
		"a directory by its slash":  {path: "app/a/", code: 200},
		"a directory by a link":     {path: "app/latest/", code: 200, header: map[string]string{"Content-Location": "/app/a"}},
		"a directory, unchanged":    {path: "app/a", headers: []string{"If-None-Match", `"x", W/` + etag(summary.Digest)}, code: 304},
		"a directory, changed":      {path: "app/a", headers: []string{"If-None-Match", `"x"`}, code: 200},
		"a directory, any":          {path: "app/a", headers: []string{"If-Match", "*"}, code: 200},
		"a directory, another":      {path: "app/a", headers: []string{"If-Match", etag("sha256:" + other)}, code: 412, says: `"a" is another one`},
		"a directory, by its tag":   {path: "app/a", headers: []string{"If-Match", "W/" + etag(summary.Digest)}, code: 412, says: "weak"},
		"a directory, by a digest":  {path: "app/", headers: []string{"If-Match", etag(summary.Digest)}, code: 412, says: "the list of the content"},
		"a directory, since then":   {path: "app/a", headers: []string{"If-Modified-Since", modified}, code: 304},
		"a directory, since before": {path: "app/a", headers: []string{"If-Modified-Since", before}, code: 200},
		"a directory, tag and date": {path: "app/a", headers: []string{"If-None-Match", `"x"`, "If-Modified-Since", modified}, code: 200},
		"a directory, not since":    {path: "app/a", headers: []string{"If-Unmodified-Since", modified}, code: 200},
		"a directory, late":         {path: "app/a", headers: []string{"If-Unmodified-Since", before}, code: 412, says: `"a" is another one`},
		"a directory, late of any":  {path: "app/a", headers: []string{"If-Match", "*", "If-Unmodified-Since", before}, code: 200},
		"a directory, no date":      {path: "app/a", headers: []string{"If-Unmodified-Since", "yesterday"}, code: 200},
		"a directory, a part of it": {path: "app/a", headers: []string{"Range", "bytes=a-b"}, code: 200, header: map[string]string{"Accept-Ranges": "", "Content-Range": ""}},
		"a file, since then":        {path: "app/empty", headers: []string{"If-Modified-Since", modified}, code: 304},
		"a file, late":              {path: "app/empty", headers: []string{"If-Unmodified-Since", before}, code: 412, says: `"empty" is another one`},
		"a bundle that is not":      {path: "missing/a", code: 404},
		"a file, HEAD of any range": {path: "app/empty", headers: []string{"If-None-Match", "*"}, code: 304},
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			got := w.do(http.MethodGet, test.path, nil, test.headers...)
			if got.code != test.code {
				t.Fatalf("got %d, want %d: %.300s", got.code, test.code, got.body)
			}
			if test.body != "" && string(got.body) != test.body {
				t.Errorf("got %d bytes that are not the %d wanted", len(got.body), len(test.body))
			}
			for key, want := range test.header {
				if got.header.Get(key) != want {
					t.Errorf("%s: got %q, want %q", key, got.header.Get(key), want)
				}
			}
			if test.code >= 400 {
				if s := got.status(t); !strings.Contains(s.Message, test.says) {
					t.Errorf("it says %q", s.Message)
				}
				if kind, _ := got.cause(t); test.cause != "" && kind != test.cause {
					t.Errorf("the cause is %q", kind)
				}
			}
			head := w.do(http.MethodHead, test.path, nil, test.headers...)
			if want := ofHead(test.code); head.code != want || len(head.body) > 0 || head.header.Get("Content-Range") != "" {
				t.Errorf("HEAD: %d with %d bytes, not %d: %v", head.code, len(head.body), want, head.header)
			}
		})
	}
	w.t = t
	if got := w.do(http.MethodPut, "app/a/b.yaml", []byte("x")); got.code != http.StatusMethodNotAllowed || got.header.Get("Allow") != "GET, HEAD" {
		t.Errorf("PUT of a file: %d, Allow %q", got.code, got.header.Get("Allow"))
	}
}

// A condition that is a list of tags may come in several lines (RFC 9110, section 5.3).
func TestListOnConditionsInSeveralLines(t *testing.T) {
	w := newLibrary(t)
	_, summary := canonical(t, library(t))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.server.URL+"/app/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header["If-None-Match"] = []string{`"x"`, "W/" + etag(summary.Digest)}
	res, err := w.server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := res.Body.Close(); err != nil || res.StatusCode != http.StatusNotModified {
		t.Errorf("%d, %v", res.StatusCode, err)
	}
}

// list reads the list of a directory.
func (w *world) list(path string) (names []string) {
	w.t.Helper()
	got := w.do(http.MethodGet, path, nil)
	if got.code != http.StatusOK {
		w.t.Fatalf("%s: %d %s", path, got.code, got.body)
	}
	err := listing.Read(bytes.NewReader(got.body), func(e listing.Entry) error {
		names = append(names, strings.TrimRight(fmt.Sprintf("%s %s %s %d %s", e.Path(), e.Type, e.Mode, e.Size, e.Target()), " "))
		if want := len(e.Digest) > 0; want != (e.Type == listing.File) {
			w.t.Errorf("%s has the digest %q", e.Path(), e.Digest)
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return names
}

func TestLists(t *testing.T) {
	w := newLibrary(t)
	for path, want := range map[string][]string{
		"app/": {
			"a Directory 0755 0", "caf\xe9 100%?#.json File 0644 2", "empty File 0644 0", "gone SymbolicLink 0777 0 nowhere", "index.html File 0644 8",
			"large.bin File 0644 716800", "latest SymbolicLink 0777 0 a", "loop SymbolicLink 0777 0 loop", "void Directory 0700 0",
		},
		"app/latest":                           {"b.yaml File 0644 5", "c Directory 0755 0", "up SymbolicLink 0777 0 ../empty"},
		"app/a?recursive=true":                 {"b.yaml File 0644 5", "c Directory 0755 0", "c/d.txt File 0644 1", "up SymbolicLink 0777 0 ../empty"},
		"app/void":                             nil,
		"app/latest?after=b.yaml":              {"c Directory 0755 0", "up SymbolicLink 0777 0 ../empty"},
		"app/latest?after=c":                   {"up SymbolicLink 0777 0 ../empty"},
		"app/a?recursive=true&after=c":         {"c/d.txt File 0644 1", "up SymbolicLink 0777 0 ../empty"},
		"app/a?recursive=true&after=c%2Fd.txt": {"up SymbolicLink 0777 0 ../empty"},
		"app/?after=caf%E9+100%25%3F%23.js":    {"caf\xe9 100%?#.json File 0644 2", "empty File 0644 0", "gone SymbolicLink 0777 0 nowhere", "index.html File 0644 8", "large.bin File 0644 716800", "latest SymbolicLink 0777 0 a", "loop SymbolicLink 0777 0 loop", "void Directory 0700 0"},
		"app/?recursive=true&after=loop":       {"void Directory 0700 0"},
		"app/?recursive=true&after=void":       nil,
		"app/?after=":                          {"a Directory 0755 0", "caf\xe9 100%?#.json File 0644 2", "empty File 0644 0", "gone SymbolicLink 0777 0 nowhere", "index.html File 0644 8", "large.bin File 0644 716800", "latest SymbolicLink 0777 0 a", "loop SymbolicLink 0777 0 loop", "void Directory 0700 0"},
	} {
		if got := w.list(path); !slices.Equal(got, want) {
			t.Errorf("%s: %q", path, got)
		}
	}
}

// index is the file of the index of a content.
func (w *world) index(digest string) string {
	w.t.Helper()
	hex := strings.TrimPrefix(digest, "sha256:")
	found, err := filepath.Glob(filepath.Join(w.dir, "*", "*", hex[:2], hex))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, path := range found {
		if path != w.blob(digest) {
			return path
		}
	}
	return ""
}

func TestIndexThatIsMadeAnew(t *testing.T) {
	_, summary := canonical(t, library(t))
	for name, spoil := range map[string]func(t *testing.T, path string) error{
		"missing": func(_ *testing.T, path string) error { return os.Remove(path) },
		"empty":   func(_ *testing.T, path string) error { return os.Truncate(path, 0) },
		"short":   func(_ *testing.T, path string) error { return os.Truncate(path, 300) },
		"of another archive": func(t *testing.T, path string) error {
			return os.WriteFile(path, bytes.Repeat([]byte("x"), 4096), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newLibrary(t)
			path := w.index(summary.Digest)
			if path == "" {
				t.Fatal("none was stored")
			}
			if err := spoil(t, path); err != nil {
				t.Fatal(err)
			}
			var readers sync.WaitGroup
			for range 4 {
				readers.Go(func() {
					if got := w.do(http.MethodGet, "app/a/b.yaml", nil); got.code != http.StatusOK || string(got.body) != "b: 1\n" {
						t.Errorf("%d %s", got.code, got.body)
					}
				})
			}
			readers.Wait()
			// It is there for the next reader.
			w.store.putIndex = errors.New("it is written again")
			if got := w.do(http.MethodGet, "app/large.bin", nil); got.code != http.StatusOK {
				t.Errorf("afterwards: %d %.200s", got.code, got.body)
			}
		})
	}
}

// A file whose bytes are damaged is not sent, and its content is lost.
func TestInsideOfDamagedContent(t *testing.T) {
	for name, path := range map[string]string{"a file": "app/large.bin", "the tar": "app?format=tar"} {
		t.Run(name, func(t *testing.T) {
			w := newLibrary(t)
			_, summary := canonical(t, library(t))
			f, err := os.OpenFile(w.blob(summary.Digest), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte("damage"), summary.Size/2); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			res, err := w.server.Client().Get(w.server.URL + "/" + path)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(res.Body)
			<-w.served
			if res.StatusCode == http.StatusOK && err == nil {
				t.Errorf("%d bytes were sent as if they were all", len(got))
			}
			// It is looked into while the reader is cut off already.
			for deadline := time.Now().Add(time.Minute); available(w.now("app")) && time.Now().Before(deadline); {
				time.Sleep(time.Millisecond)
			}
			if got := w.do(http.MethodGet, "app/large.bin", nil); got.code != http.StatusConflict {
				t.Errorf("read again: %d %.200s", got.code, got.body)
			}
			if available(w.now("app")) {
				t.Error("the content is said to be there")
			}
		})
	}
}

func TestInsideWithoutTheStore(t *testing.T) {
	w := newLibrary(t)
	w.store.index = errors.New("input/output error")
	if got := w.do(http.MethodGet, "app/empty", nil); got.code != http.StatusServiceUnavailable {
		t.Errorf("no index: %d %s", got.code, got.body)
	}
	w.store.index = nil
	w.store.open = errors.New("input/output error")
	got := w.do(http.MethodGet, "app/a/b.yaml", nil)
	if got.code != http.StatusServiceUnavailable || got.header.Get("ETag") != "" {
		t.Errorf("no blob: %d %s, %v", got.code, got.body, got.header)
	}
	w.store.open = fmt.Errorf("removed: %w", content.ErrNotFound)
	if got := w.do(http.MethodGet, "app/a/b.yaml", nil); got.code != http.StatusConflict {
		t.Errorf("a blob that went away: %d %s", got.code, got.body)
	}
	w.store.open = nil
	if !available(w.now("app")) {
		t.Error("the content is said to be lost, and is there")
	}
}

// Content is taken even if its index cannot be kept, and has one as soon as somebody needs it.
func TestUploadWithoutAnIndex(t *testing.T) {
	w := newWorld(t)
	w.addUpload("app")
	w.store.putIndex = errors.New("no room for it")
	_, summary := w.put("app", "x")
	if w.index(summary.Digest) != "" {
		t.Fatal("there is one")
	}
	if got := w.do(http.MethodGet, "app/file", nil); got.code != http.StatusServiceUnavailable {
		t.Errorf("while it cannot be made: %d %s", got.code, got.body)
	}
	w.store.putIndex = nil
	if got := w.do(http.MethodGet, "app/file", nil); got.code != http.StatusOK || string(got.body) != "x" {
		t.Errorf("%d %s", got.code, got.body)
	}
}

func TestRebuildThatTellsDamage(t *testing.T) {
	w := newWorld(t)
	w.addUpload("app")
	archive, summary := w.put("app", "x")
	x := newIndexes(t.TempDir())
	if err := x.make(t.Context(), w.store, summary.Digest); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func([]byte){
		"no archive at all": func(b []byte) { b[0] = 0 },
		"a byte":            func(b []byte) { b[len(b)-1] ^= 1 },
	} {
		damaged := slices.Clone(archive)
		change(damaged)
		if err := os.WriteFile(w.blob(summary.Digest), damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := x.make(t.Context(), w.store, summary.Digest); !errors.Is(err, errDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := x.make(t.Context(), w.store, "sha256:"+strings.Repeat("0", 64)); !errors.Is(err, content.ErrNotFound) {
		t.Errorf("no blob: %v", err)
	}
	// What is no archive, and yet what was stored, is not lost.
	foreign := []byte("no archive")
	writer, err := w.store.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writer.Write(foreign); err != nil {
		t.Fatal(err)
	}
	if err := writer.Commit(t.Context(), digestOf(foreign)); err != nil {
		t.Fatal(err)
	}
	if err := x.make(t.Context(), w.store, digestOf(foreign)); errors.Is(err, errDamaged) || !errors.Is(err, tarball.ErrNotCanonical) {
		t.Errorf("bytes that are no archive: %v", err)
	}
}

// A reader that has no time to wait does not end what others wait for.
func TestRebuildOutlivesItsReader(t *testing.T) {
	w := newLibrary(t)
	_, summary := canonical(t, library(t))
	x := newIndexes(t.TempDir())
	for range maxRebuilds {
		x.slots <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := x.rebuild(ctx, w.store, summary.Digest, errors.New("it is missing")); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	x.mu.Lock()
	b := x.builds[summary.Digest]
	x.mu.Unlock()
	if b == nil {
		t.Fatal("it was given up")
	}
	for range maxRebuilds {
		<-x.slots
	}
	<-b.done
	if b.err != nil {
		t.Error(b.err)
	}
}

// A panic over stored bytes is the error of whoever waits, and the next may try again.
func TestRebuildPanics(t *testing.T) {
	w := newLibrary(t)
	_, summary := canonical(t, library(t))
	x := newIndexes(t.TempDir())
	w.store.opened = func(io.ReadCloser) io.ReadCloser { panic("a fault") }
	for range maxRebuilds + 1 {
		err := x.rebuild(t.Context(), w.store, summary.Digest, errors.New("it is missing"))
		if _, ok := errors.AsType[*panics.Error](err); !ok {
			t.Fatal(err)
		}
	}
	w.store.opened = nil
	if err := x.rebuild(t.Context(), w.store, summary.Digest, errors.New("it is missing")); err != nil {
		t.Error(err)
	}
}

func TestMediaTypes(t *testing.T) {
	for name, want := range map[string]string{
		"a.YAML": "application/yaml", "b/c.json": "application/json", "README": anyType, "x.html": textType, "a.tar.gz": "application/gzip", ".json": "application/json", "d.yaml/e": anyType,
	} {
		if got := mediaTypeOf(name); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
	for extension, kind := range mediaTypes {
		if strings.Contains(kind, "html") {
			t.Errorf("%s is %s, which the proxy of kube-apiserver rewrites", extension, kind)
		}
	}
}

// FuzzPath asks for any path: the answer is a file, a list or an error that says why, and nothing else.
func FuzzPath(f *testing.F) {
	for _, seed := range []string{"", "/", "/a", "/a/", "/latest/up", "/../a", "//", "/a\x00", "/\xff", "/loop/x", "/a/b.yaml/", strings.Repeat("/latest", 50)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		i, err := newInsider(nil, &rukpak.BundleContentOptions{Path: path}, &http.Request{URL: &url.URL{Path: "/x" + path}})
		if err != nil {
			return
		}
		for part := range strings.SplitSeq(i.path, "/") {
			if i.path != "" && (part == "" || part == "." || part == "..") {
				t.Errorf("%q became %q", path, i.path)
			}
		}
		if i.path != "" && !strings.HasPrefix("/x"+path, i.base+i.path) {
			t.Errorf("%q is %q below %q", path, i.path, i.base)
		}
	})
}

// What an unpack pod sends is checked and not written anew; its index is made on the way, too.
func TestIndexOfAnAttempt(t *testing.T) {
	w := newWorld(t)
	w.addImage("app")
	w.caller = podCaller("team", "unpack", "pod-uid")
	w.classes["raw"].Limits = nil
	sent, summary := canonical(t, library(t))
	if got := w.do(http.MethodPut, "app", sent); got.code != http.StatusCreated {
		t.Fatalf("PUT: %d %s", got.code, got.body)
	}
	if w.index(summary.Digest) == "" {
		t.Error("there is none")
	}
	w.store.putIndex = errors.New("it is made again")
	if got := w.do(http.MethodGet, "app/a/b.yaml", nil); got.code != http.StatusOK || string(got.body) != "b: 1\n" {
		t.Errorf("%d %s", got.code, got.body)
	}
	if now := w.now("app").Status.Content; now.Digest != summary.Digest || now.UncompressedDigest != summary.UncompressedDigest || now.Size != summary.Size {
		t.Errorf("the content is %+v, not %+v", now, summary)
	}
}
