// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"archive/tar"
	"bytes"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/content/listing"
)

// oddNames are components of paths that are easily taken for something else, or sorted elsewhere.
var oddNames = []string{
	" ", "%", "%2F", "%41", "?", "?after=b", "#", "&", "+", ";", "=", "!", "-", ".x", "..x", "...", "a", "a ", "a!", "a-b", "a.b", "a0", "aa", "ab", "a\x01", "a\nb", `a\b`, `"`,
	"caf\xe9", "café", "\xc3", "\xff", "\xff\xfe", "\x01", "�", "日本", "~", strings.Repeat("l", 255), strings.Repeat("l", 254), strings.Repeat("é", 127), strings.Repeat("\xff", 255),
}

// A list that goes on is what the whole one has behind a name, whichever that is.
func TestListsGoOnBehindAnyName(t *testing.T) {
	var files []tar.Header
	file := func(name string) { files = append(files, tar.Header{Name: name, Mode: 0o644, Typeflag: tar.TypeReg}) }
	for _, name := range oddNames {
		file("all/" + name)
		file("below/" + name + "/x")
		file(name + "/" + name)
	}
	for _, name := range []string{"a/b", "a/b-c/d", "a/b/c/d", "a/b.c", "a/.b/c", "a0/", "aa/a/a"} {
		file("prefixes/" + name + "/f")
	}
	w := newWorld(t)
	w.classes["raw"].Limits = &rukpak.ContentLimits{Files: ptr.To[int64](1000)}
	w.addUpload("app")
	if got := w.do(http.MethodPut, "app", rawArchive(t, files...)); got.code != http.StatusCreated {
		t.Fatalf("PUT: %d %s", got.code, got.body)
	}
	list := func(dir, query string) (paths []string) {
		t.Helper()
		got := w.do(http.MethodGet, "app/"+dir+"?"+query, nil)
		err := listing.Read(bytes.NewReader(got.body), func(e listing.Entry) error {
			paths = append(paths, e.Path())
			return nil
		})
		if got.code != http.StatusOK || err != nil {
			t.Fatalf("%q, %s: %d, %v", dir, query, got.code, err)
		}
		return paths
	}
	for _, dir := range []string{"", "a", "all", "below", "prefixes", "prefixes/a"} {
		for _, recursive := range []string{"", "recursive=true&"} {
			all := list(dir, recursive)
			check := func(after string, want []string) {
				t.Helper()
				if got := list(dir, recursive+"after="+url.QueryEscape(after)); !slices.Equal(got, want) {
					t.Fatalf("%q, %s after %.300q: %d entries, not %d", dir, recursive, after, len(got), len(want))
				}
			}
			for i, path := range all {
				check(path, all[i+1:])
			}
			for _, made := range madeUp(all, recursive != "") {
				// Its place is that of its components: what is below a directory comes right behind it.
				at, found := slices.BinarySearchFunc(all, made, func(a, b string) int { return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) })
				if found {
					at++
				}
				check(made, all[at:])
			}
		}
	}
}

// madeUp are names before, behind and between those of a list. Of a long list they are beside some.
func madeUp(all []string, recursive bool) []string {
	made := []string{"\x01\x01", "0", "A", "m", "/", "//", "a//b", "a/", "./a", "../a", ".", "..", "zz", "\xff\xff\xff", "\xff/\xff", strings.Repeat("k", 5000), strings.Repeat("m/", 3000), "a\x00b", "\x00"}
	step := 1
	if recursive {
		step = 1 + len(all)/40
	}
	for i := 0; i < len(all); i += step {
		name := all[i]
		last := name[len(name)-1]
		made = append(made, name+"\x01", name+"0", name+"\xff", name+"/", name+"/!", name+"/x/y", name+"/\xff", name[:len(name)-1]+string([]byte{last - 1, 0xff}), name[:len(name)-1]+string([]byte{last + 1}))
		if len(name) > 1 {
			made = append(made, name[:len(name)-1])
		}
	}
	return slices.DeleteFunc(made, func(name string) bool { return name == "" })
}
