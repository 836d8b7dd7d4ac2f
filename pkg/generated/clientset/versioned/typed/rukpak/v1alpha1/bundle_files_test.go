// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"rukpak.io/apiserver/pkg/generated/clientset/versioned"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// newBundles is a client of a server that answers with a handler, below a path as that of a proxy.
func newBundles(t *testing.T, handler http.HandlerFunc) typed.BundleInterface {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	client, err := versioned.NewForConfig(&rest.Config{Host: server.URL + "/k8s/cluster"})
	if err != nil {
		t.Fatal(err)
	}
	return client.RukpakV1alpha1().Bundles("team")
}

const prefix = "/k8s/cluster/apis/rukpak.io/v1alpha1/namespaces/team/bundles/app/content"

func TestGetFile(t *testing.T) {
	const content = "some text"
	sum := sha256.Sum256([]byte(content))
	digest := "sha256:" + hex.EncodeToString(sum[:])
	var asked []string
	bundles := newBundles(t, func(w http.ResponseWriter, req *http.Request) {
		asked = append(asked, req.URL.Path+"?"+req.URL.RawQuery+" "+req.Header.Get("Range")+req.Header.Get("If-Match"))
		w.Header().Set("ETag", `"`+digest+`"`)
		w.Header().Set("Content-Type", "text/plain")
		if req.Header.Get("Range") != "" {
			w.Header().Set("Content-Range", "bytes 5-8/9")
			w.WriteHeader(http.StatusPartialContent)
			fmt.Fprint(w, content[5:])
			return
		}
		if req.URL.Path == prefix+"/damaged" {
			fmt.Fprint(w, "other text")
			return
		}
		fmt.Fprint(w, content)
	})
	read := func(path string, opts typed.GetFileOptions) (string, error) {
		f, err := bundles.GetFile(t.Context(), "app", path, opts)
		if err != nil {
			return "", err
		}
		defer f.Close()
		if f.Digest != digest || f.MediaType != "text/plain" {
			t.Errorf("%q: %+v", path, f)
		}
		b, err := io.ReadAll(f)
		return string(b), err
	}
	if got, err := read("a/caf\xe9 100%?#.txt", typed.GetFileOptions{Digest: digest, IfDigest: "x"}); got != content || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := read("a", typed.GetFileOptions{Offset: 5}); got != "text" || err != nil {
		t.Errorf("a part: %q, %v", got, err)
	}
	if _, err := read("damaged", typed.GetFileOptions{}); !errors.Is(err, typed.ErrDigestMismatch) {
		t.Errorf("other bytes: %v", err)
	}
	for _, path := range []string{"", "a/", "/a", "a//b", "../b", "a/."} {
		if _, err := read(path, typed.GetFileOptions{}); err == nil {
			t.Errorf("%q: no error", path)
		}
	}
	if _, err := read("a", typed.GetFileOptions{Offset: -1}); err == nil {
		t.Error("a negative offset: no error")
	}
	want := []string{prefix + "/a/caf\xe9 100%?#.txt?digest=" + strings.ReplaceAll(digest, ":", "%3A") + ` "x"`, prefix + "/a? bytes=5-", prefix + "/damaged? "}
	if strings.Join(asked, "\n") != strings.Join(want, "\n") {
		t.Errorf("asked for\n%q, not\n%q", asked, want)
	}
}

func TestListFiles(t *testing.T) {
	bundles := newBundles(t, func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.RequestURI() {
		case prefix + "/":
			fmt.Fprint(w, `{"path":"","entries":[{"name":"a","type":"Directory"},{"name":"b","type":"File","size":3}]}`)
		case prefix + "/a?recursive=true":
			fmt.Fprint(w, `{"path":"a","entries":[{"name":"c/d","type":"File"}]}`)
		case prefix + "/file":
			// A file is none, whatever is in it.
			w.Header().Set("ETag", `"sha256:x"`)
			fmt.Fprint(w, `{"path":"file","entries":[{"name":"a","type":"File"}]}`)
		case prefix + "/broken":
			fmt.Fprint(w, `{"path":"a","entries":[{"name":"c/d","type":"File"}`)
		default:
			http.NotFound(w, req)
		}
	})
	names := func(path string, opts typed.ListFilesOptions) (all []string, failed error) {
		for e, err := range bundles.ListFiles(t.Context(), "app", path, opts) {
			if err != nil {
				failed = err
				continue
			}
			all = append(all, e.Name)
		}
		return all, failed
	}
	if got, err := names("", typed.ListFilesOptions{}); strings.Join(got, " ") != "a b" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := names("a/", typed.ListFilesOptions{Recursive: true}); strings.Join(got, " ") != "c/d" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := names("broken", typed.ListFilesOptions{}); strings.Join(got, " ") != "c/d" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := names("file", typed.ListFilesOptions{}); got != nil || !errors.Is(err, typed.ErrNotDirectory) {
		t.Errorf("of a file: %q, %v", got, err)
	}
	for _, path := range []string{"missing", "a//b", ".."} {
		if got, err := names(path, typed.ListFilesOptions{}); got != nil || err == nil {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	for range bundles.ListFiles(t.Context(), "app", "", typed.ListFilesOptions{}) {
		break
	}
}
