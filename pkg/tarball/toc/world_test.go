// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package toc

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"testing"

	"rukpak.io/apiserver/pkg/tarball"
)

// file is an entry of an archive that tests make: a link if it has a target, a directory if its name ends with a slash.
type file struct {
	name, content, link string
}

// made is an archive with its index.
type made struct {
	summary tarball.Summary
	archive []byte
	tar     []byte
	index   []byte
	entries []Entry
	opened  int64 // bytes that were asked for of the index
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newMade makes the canonical archive of files.
func newMade(t testing.TB, files ...file) *made {
	t.Helper()
	var in, out bytes.Buffer
	w := tar.NewWriter(&in)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: 0o644, Typeflag: tar.TypeReg, Size: int64(len(f.content)), Linkname: f.link}
		switch {
		case f.link != "":
			h.Typeflag = tar.TypeSymlink
		case f.name[len(f.name)-1] == '/':
			h.Typeflag, h.Mode = tar.TypeDir, 0o750
		}
		must(t, w.WriteHeader(h))
		_, err := io.WriteString(w, f.content)
		must(t, err)
	}
	must(t, w.Close())
	summary, err := tarball.Canonicalize(t.Context(), &out, &in, tarball.Options{Scratch: t.TempDir()})
	must(t, err)
	m := &made{summary: summary, archive: out.Bytes()}
	m.make(t)
	return m
}

// make makes the index of the archive anew.
func (m *made) make(t testing.TB) {
	t.Helper()
	b, err := NewBuilder(t.TempDir())
	must(t, err)
	var list lister
	m.summary, err = tarball.VerifyIndexed(t.Context(), bytes.NewReader(m.archive), tarball.Options{Index: &both{b, &list}})
	must(t, err)
	r, size, err := b.Finish(m.summary)
	must(t, err)
	m.index, err = io.ReadAll(r)
	must(t, err)
	must(t, b.Close())
	if int64(len(m.index)) != size {
		t.Fatalf("the index has %d bytes, and is said to have %d", len(m.index), size)
	}
	m.entries = list
	z, err := gzip.NewReader(bytes.NewReader(m.archive))
	must(t, err)
	m.tar, err = io.ReadAll(z)
	must(t, err)
}

type lister []Entry

// both tells a builder and a list the same.
type both struct {
	*Builder
	list *lister
}

func (b *both) Entry(e tarball.Entry, offset int64, digest [32]byte) {
	b.Builder.Entry(e, offset, digest)
	*b.list = append(*b.list, Entry{e, offset, digest})
}

// opener gives parts of b.
func opener(b []byte) Opener {
	return func(ctx context.Context, offset, length int64) (io.ReadCloser, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		offset = min(offset, int64(len(b)))
		if length < 0 || length > int64(len(b))-offset {
			length = int64(len(b)) - offset
		}
		return io.NopCloser(bytes.NewReader(b[offset : offset+length])), nil
	}
}

func (m *made) openIndex(ctx context.Context, offset, length int64) (io.ReadCloser, error) {
	m.opened += length
	return opener(m.index)(ctx, offset, length)
}

func (m *made) open(t testing.TB) *Index {
	t.Helper()
	x, err := Open(t.Context(), m.summary.Digest, m.openIndex)
	must(t, err)
	return x
}

// read reads a range of the tar.
func (m *made) read(t testing.TB, x *Index, offset, size int64) ([]byte, error) {
	t.Helper()
	r, err := x.Read(t.Context(), opener(m.archive), offset, size)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(r)
	must(t, r.Close())
	return b, err
}
