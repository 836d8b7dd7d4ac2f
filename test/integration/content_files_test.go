// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// library is a content to look into.
func library(t *testing.T) stored {
	t.Helper()
	return store(t, "raw", configMap("hello"), noise("data/large.bin", 1, 1_500_000), entry{name: "index.html", body: "<html><a href=/x>x</a></html>"},
		entry{name: "caf\xe9 100%?#.json", body: "{}"}, entry{name: "latest", flag: tar.TypeSymlink, link: "manifests"})
}

func TestFilesAreReadByTheirPaths(t *testing.T) {
	s := library(t)
	hello, large := configMap("hello").body, noise("", 1, 1_500_000).body
	for _, w := range bothWays(t) {
		t.Run(w.name, func(t *testing.T) {
			get := func(path string, code int, headers ...string) reply {
				t.Helper()
				return w.do(t, http.MethodGet, s.path()+path, s.user.token, nil, headers...).expect(t, code)
			}
			for path, want := range map[string][2]string{
				"/manifests/hello.yaml":                     {"application/yaml", hello},
				"/latest/hello.yaml":                        {"application/yaml", hello},
				"/data/large.bin":                           {"application/octet-stream", large},
				"/index.html":                               {"text/plain", "<html><a href=/x>x</a></html>"},
				"/caf%E9%20100%25%3F%23.json":               {"application/json", "{}"},
				"/index.html?digest=" + digestOf(s.content): {"text/plain", "<html><a href=/x>x</a></html>"},
			} {
				r := get(path, http.StatusOK)
				if string(r.body) != want[1] || r.header.Get("Content-Type") != want[0] || r.header.Get("Content-Length") != strconv.Itoa(len(want[1])) {
					t.Errorf("%s: %d bytes, %v", path, len(r.body), r.header)
				}
				if tag := r.header.Get("ETag"); tag != `"`+digestOf([]byte(want[1]))+`"` {
					t.Errorf("%s: the tag is %s", path, tag)
				}
				head := w.do(t, http.MethodHead, s.path()+path, s.user.token, nil).expect(t, http.StatusOK)
				if head.header.Get("Content-Length") != strconv.Itoa(len(want[1])) {
					t.Errorf("HEAD %s: %v", path, head.header)
				}
			}
			part := get("/data/large.bin", http.StatusPartialContent, "Range", "bytes=1000000-1000099")
			if string(part.body) != large[1000000:1000100] {
				t.Error("a part is another one")
			}
			get("/index.html", http.StatusNotModified, "If-None-Match", `"`+digestOf([]byte("<html><a href=/x>x</a></html>"))+`"`)
			if r := get("/latest/hello.yaml", http.StatusOK); r.header.Get("Content-Location") != s.path()+"/manifests/hello.yaml" {
				t.Errorf("by way of a link: %v", r.header)
			}
			get("/", http.StatusOK).expect(t, http.StatusOK, `"name":"index.html"`, `"linkTarget":"manifests"`)
			get("/manifests?recursive=true", http.StatusOK).expect(t, http.StatusOK, `{"path":"manifests"`, `"name":"hello.yaml"`)
			rest := get("/?recursive=true&after=manifests", http.StatusOK)
			if got := string(rest.body); !strings.Contains(got, `"name":"manifests/hello.yaml"`) || strings.Contains(got, `"name":"manifests"`) || strings.Contains(got, "latest") {
				t.Errorf("the rest of the list: %s", got)
			}
			if got := string(get("/?after=caf%E9+100%25%3F%23.json", http.StatusOK).body); !strings.Contains(got, `"entries":[`+"\n"+`{"name":"data"`) {
				t.Errorf("the list behind a name of any bytes: %s", got)
			}
			get("/index.html?after=a", http.StatusBadRequest)
			missing := get("/manifests/none.yaml", http.StatusNotFound).status(t)
			if !strings.Contains(missing.Message, `"manifests/none.yaml"`) || missing.Details.Causes[0].Type != "FileNotFound" {
				t.Errorf("what is not there: %+v", missing)
			}
			get("?format=zip", http.StatusBadRequest)
			whole := get("?format=tar", http.StatusOK)
			if b := getBundle(t, s); whole.header.Get("ETag") != `"`+b+`"` || b != digestOf(whole.body) {
				t.Errorf("the tar has the tag %s and is %s", whole.header.Get("ETag"), digestOf(whole.body))
			}
			w.do(t, http.MethodPut, s.path()+"/index.html", s.user.token, strings.NewReader("x")).expect(t, http.StatusMethodNotAllowed)
			nobody := newUser(t, s.namespace, rule("bundles", "get"))
			w.do(t, http.MethodGet, s.path()+"/index.html", nobody.token, nil).expect(t, http.StatusForbidden)
		})
	}
	s.unchanged(t, direct(t))
}

// Long lists are compressed for who takes that, and for nobody else, whichever way they come.
func TestLongListsAreCompressed(t *testing.T) {
	var files []entry
	for i := range 500 {
		files = append(files, entry{name: fmt.Sprintf("a-directory/of-many/file-%03d.yaml", i)})
	}
	s := store(t, "raw", files...)
	path := s.path() + "/a-directory/?recursive=true"
	whole := direct(t).do(t, http.MethodGet, path, s.user.token, nil).expect(t, http.StatusOK, `"name":"of-many/file-499.yaml"`)
	for _, w := range bothWays(t) {
		for accept, want := range map[string]string{"": "", "identity": "", "gzip": "gzip", "gzip;q=0.5, identity;q=0": "gzip"} {
			var headers []string
			if accept != "" {
				headers = []string{"Accept-Encoding", accept}
			}
			r := w.do(t, http.MethodGet, path, s.user.token, nil, headers...).expect(t, http.StatusOK)
			if want != "" {
				r.body = must(io.ReadAll(must(gzip.NewReader(bytes.NewReader(r.body)))(t)))(t)
			}
			if r.header.Get("Content-Encoding") != want || !bytes.Equal(r.body, whole.body) || r.header.Get("Vary") != "Accept-Encoding" || r.header.Get("ETag") != whole.header.Get("ETag") {
				t.Errorf("%s, %q: %d bytes, not %d: %v", w.name, accept, len(r.body), len(whole.body), r.header)
			}
			w.do(t, http.MethodGet, path, s.user.token, nil, append(headers, "If-None-Match", r.header.Get("ETag"))...).expect(t, http.StatusNotModified)
		}
	}
	if got := mustKubectl(t, "", "get", "--raw", path); got != string(whole.body) {
		t.Errorf("kubectl reads %d bytes, not %d", len(got), len(whole.body))
	}
}

// getBundle is the digest of the tar in a bundle's content, as its status tells.
func getBundle(t *testing.T, s stored) string {
	t.Helper()
	return get(t, s.namespace, s.name).Status.Content.UncompressedDigest
}

func TestFilesWithKubectlAndTheClientset(t *testing.T) {
	s := library(t)
	if got := mustKubectl(t, "", "get", "--raw", s.path()+"/manifests/hello.yaml"); got != configMap("hello").body {
		t.Errorf("kubectl reads %q", got)
	}
	if got := mustKubectl(t, "", "get", "--raw", s.path()+"/"); !strings.Contains(got, `"name":"manifests"`) {
		t.Errorf("kubectl lists %q", got)
	}
	names := []string{}
	for r := tar.NewReader(strings.NewReader(mustKubectl(t, "", "get", "--raw", s.path()+"?format=tar"))); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	want := []string{"caf\xe9 100%?#.json", "data/", "data/large.bin", "index.html", "latest", "manifests/", "manifests/hello.yaml"}
	if !slices.Equal(names, want) {
		t.Errorf("the tar has %q", names)
	}

	client := bundles(s.namespace)
	var listed []string
	for e, err := range client.ListFiles(t.Context(), s.name, "", typed.ListFilesOptions{Recursive: true}) {
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, e.Path())
	}
	for i := range want {
		want[i] = strings.TrimSuffix(want[i], "/")
	}
	if !slices.Equal(listed, want) {
		t.Errorf("the clientset lists %q", listed)
	}
	f := must(client.GetFile(t.Context(), s.name, "caf\xe9 100%?#.json", typed.GetFileOptions{}))(t)
	if got := must(io.ReadAll(f))(t); !bytes.Equal(got, []byte("{}")) || f.MediaType != "application/json" {
		t.Errorf("the clientset reads %q, %+v", got, f)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := client.GetFile(t.Context(), s.name, "none", typed.GetFileOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what is not there: %v", err)
	}
}
