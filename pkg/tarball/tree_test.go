// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// item is an entry of a test tree. Hard links name an earlier item.
type item struct {
	name    string
	mode    fs.FileMode
	content string
	symlink string
	link    string
	dir     bool
}

type tree []item

// build makes the tree on disk.
func (items tree) build(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	var directories []item
	for _, it := range items {
		path := filepath.Join(root, it.name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		switch {
		case it.dir:
			must(t, os.MkdirAll(path, 0o755))
			directories = append(directories, it)
		case it.symlink != "":
			must(t, os.Symlink(it.symlink, path))
		case it.link != "":
			must(t, os.Link(filepath.Join(root, it.link), path))
		default:
			must(t, os.WriteFile(path, []byte(it.content), 0o600))
			must(t, os.Chmod(path, it.mode))
		}
	}
	for _, it := range directories {
		path := filepath.Join(root, it.name)
		must(t, os.Chmod(path, it.mode))
		t.Cleanup(func() { _ = os.Chmod(path, 0o755) })
	}
	return root
}

// headers makes tar headers of the tree, with all that an archiver may add.
func (items tree) headers(format tar.Format) []*tar.Header {
	var headers []*tar.Header
	for i, it := range items {
		h := &tar.Header{
			Name:    it.name,
			Mode:    int64(it.mode.Perm()),
			Uid:     1000 + i,
			Gid:     7,
			ModTime: time.Unix(1700000000+int64(i), 0),
			Format:  format,
		}
		if it.mode&fs.ModeSetuid != 0 {
			h.Mode |= 0o4000
		}
		if it.mode&fs.ModeSetgid != 0 {
			h.Mode |= 0o2000
		}
		if it.mode&fs.ModeSticky != 0 {
			h.Mode |= 0o1000
		}
		switch {
		case it.dir:
			h.Typeflag, h.Name = tar.TypeDir, it.name+"/"
		case it.symlink != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, it.symlink
		case it.link != "":
			h.Typeflag, h.Linkname = tar.TypeLink, it.link
		default:
			h.Typeflag, h.Size = tar.TypeReg, int64(len(it.content))
		}
		if format == tar.FormatPAX {
			h.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "\x01\x00x"}
			h.AccessTime = time.Unix(1700000000, 5)
			h.Uname = "somebody"
		}
		headers = append(headers, h)
	}
	return headers
}

// tar packs the tree as a foreign tar, in the order in which it is written down.
func (items tree) tar(t testing.TB, format tar.Format) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i, h := range items.headers(format) {
		must(t, w.WriteHeader(h))
		_, err := io.WriteString(w, items[i].content)
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func gzipped(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Name = "a name that goes"
	_, err := w.Write(data)
	must(t, err)
	must(t, w.Close())
	return b.Bytes()
}

func gunzipped(t testing.TB, data []byte) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(data))
	must(t, err)
	b, err := io.ReadAll(r)
	must(t, err)
	return b
}

// canonicalGzip compresses arbitrary bytes as the one member of a canonical archive.
func canonicalGzip(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.DefaultCompression)
	must(t, err)
	_, err = w.Write(data)
	must(t, err)
	must(t, w.Close())
	if !strings.HasPrefix(b.String(), gzipHeader) {
		t.Fatalf("the standard library's gzip header is %x", b.Bytes()[:10])
	}
	return b.Bytes()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// canonicalize runs Canonicalize on data.
func canonicalize(t testing.TB, data []byte, opts Options) ([]byte, Summary, error) {
	t.Helper()
	opts.Scratch = t.TempDir()
	var out bytes.Buffer
	summary, err := Canonicalize(t.Context(), &out, bytes.NewReader(data), opts)
	if rest, _ := os.ReadDir(opts.Scratch); len(rest) != 0 {
		t.Errorf("scratch holds %v afterwards", rest)
	}
	return out.Bytes(), summary, err
}

func verify(t testing.TB, data []byte, limits Limits) (Summary, error) {
	t.Helper()
	return Verify(t.Context(), bytes.NewReader(data), limits, nil)
}

// read lists a canonical archive through archive/tar, one line for an entry.
func read(t testing.TB, data []byte) []string {
	t.Helper()
	r := tar.NewReader(bytes.NewReader(gunzipped(t, data)))
	var lines []string
	for {
		h, err := r.Next()
		if err == io.EOF {
			return lines
		}
		must(t, err)
		content, err := io.ReadAll(r)
		must(t, err)
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" || h.ModTime.Unix() != 0 {
			t.Errorf("entry %q: header %+v", h.Name, h)
		}
		lines = append(lines, fmt.Sprintf("%c %04o %s %s %q", h.Typeflag, h.Mode, h.Name, h.Linkname, content))
	}
}

// imageTree is what images hold, and what they seldom do, in no good order.
func imageTree() tree {
	long := strings.Repeat("long-component-", 12)
	return tree{
		{name: "usr/bin/tool", mode: 0o755 | fs.ModeSetuid, content: "#!/bin/sh\n"},
		{name: "usr/bin/alias", mode: 0o755 | fs.ModeSetuid, link: "usr/bin/tool"},
		{name: "a.b", mode: 0o644, content: "sorts after the folder a"},
		{name: "a", mode: 0o750, dir: true},
		{name: "a/z", mode: 0o644, content: "z"},
		{name: "a/b", mode: 0o644, content: "b"},
		{name: "tmp", mode: 0o777 | fs.ModeSticky, dir: true},
		{name: "empty", mode: 0o700 | fs.ModeSetgid, dir: true},
		{name: "empty-file", mode: 0o400},
		{name: "no-mode", mode: 0, content: "mode 0000"},
		{name: "links/file", mode: 0o777, symlink: "../a/b"},
		{name: "links/dir", mode: 0o777, symlink: "../a"},
		{name: "links/dangling", mode: 0o777, symlink: "./nowhere//"},
		{name: "links/hard", mode: 0o644, link: "a/z"},
		{name: "links/long", mode: 0o777, symlink: "../" + long + "/" + long},
		{name: "links/latin1", mode: 0o777, symlink: "../caf\xe9"},
		{name: long + "/" + long + "/file", mode: 0o644, content: "long path"},
		{name: strings.Repeat("x", 100), mode: 0o644, content: "just fits"},
		{name: strings.Repeat("y", 99), mode: 0o755, dir: true},
		{name: strings.Repeat("z", 100), mode: 0o755, dir: true},
		{name: "grüße/日本語.yaml", mode: 0o644, content: "utf-8"},
		{name: "caf\xe9", mode: 0o644, content: "latin-1"},
		{name: "new\nline and \"quotes\" \\", mode: 0o644, content: "odd"},
		{name: "zeros", mode: 0o644, content: strings.Repeat("\x00", 3*blockSize)},
		{name: "block", mode: 0o644, content: strings.Repeat("b", blockSize)},
		{name: "large", mode: 0o644, content: strings.Repeat("0123456789abcdef\n", 2*chunkSize/17+5)},
	}
}

// vectors are the trees of the golden vectors.
func vectors() map[string]tree {
	long := strings.Repeat("0123456789", 11)
	return map[string]tree{
		"empty": {},
		"plain": {
			{name: "manifests", mode: 0o755, dir: true},
			{name: "manifests/config.yaml", mode: 0o644, content: "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: example\n"},
			{name: "manifests-extra", mode: 0o755, content: "sorts after manifests/\n"},
			{name: "script", mode: 0o755 | fs.ModeSetuid, content: "#!/bin/sh\n"},
		},
		"links": {
			{name: "dir", mode: 0o750, dir: true},
			{name: "dir/file", mode: 0o600, content: "one file, two names\n"},
			{name: "copy", mode: 0o600, link: "dir/file"},
			{name: "dir/up", mode: 0o777, symlink: "../copy"},
			{name: "target", mode: 0o777, symlink: long},
		},
		"names": {
			{name: long, mode: 0o644, content: "a name of 110 bytes\n"},
			{name: "caf\xe9", mode: 0o644, content: "not UTF-8\n"},
			{name: "grüße", mode: 0o755, dir: true},
			{name: "grüße/" + long, mode: 0o644, content: "long and not ASCII\n"},
			{name: "new\nline", mode: 0o644, content: ""},
			{name: strings.Repeat("x", 99), mode: 0o755, dir: true},
		},
	}
}

func shuffled(items tree, by int) tree {
	// Hard links may precede what they link to, and children their folder.
	items = slices.Clone(items)
	slices.Reverse(items)
	by %= max(len(items), 1)
	return append(items[by:], items[:by]...)
}
