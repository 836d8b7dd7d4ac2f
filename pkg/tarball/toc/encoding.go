// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package toc

import (
	"encoding/binary"
	"io/fs"
	"math"

	"rukpak.io/apiserver/pkg/tarball"
)

// appendEntry appends an entry that comes after one with the name last: how many bytes their names share, the rest of its
// name, type, mode, offset, and the target of a link, or the size and digest of a file.
func appendEntry(b []byte, e *Entry, last string) []byte {
	shared := 0
	for shared < min(len(e.Name), len(last)) && e.Name[shared] == last[shared] {
		shared++
	}
	b = binary.AppendUvarint(b, uint64(shared))
	b = appendText(b, e.Name[shared:])
	b = append(b, byte(e.Type))
	b = binary.AppendUvarint(b, uint64(e.Mode))
	b = binary.AppendUvarint(b, uint64(e.Offset))
	switch e.Type {
	case tarball.TypeSymlink:
		b = appendText(b, e.Linkname)
	case tarball.TypeFile:
		b = binary.AppendUvarint(b, uint64(e.Size))
		b = append(b, e.Digest[:]...)
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// decoder takes a part to pieces. After something that cannot be, bad is true and the rest is zeros.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) fail() {
	d.bad, d.b = true, nil
}

func (d *decoder) number() int64 {
	n, size := binary.Uvarint(d.b)
	if size <= 0 || n > math.MaxInt64 {
		d.fail()
		return 0
	}
	d.b = d.b[size:]
	return int64(n)
}

// take returns the next n bytes.
func (d *decoder) take(n int64) []byte {
	if n < 0 || n > int64(len(d.b)) {
		d.fail()
		return nil
	}
	taken := d.b[:n]
	d.b = d.b[n:]
	return taken
}

func (d *decoder) text() string { return string(d.take(d.number())) }

// entry reads an entry that comes after one with the name last.
func (d *decoder) entry(last string) *Entry {
	shared := d.number()
	if shared > int64(len(last)) {
		d.fail()
		return nil
	}
	e := &Entry{}
	e.Name = last[:shared] + d.text()
	if kind := d.take(1); len(kind) == 1 {
		e.Type = tarball.Type(kind[0])
	}
	e.Mode = fs.FileMode(d.number())
	e.Offset = d.number()
	switch e.Type {
	case tarball.TypeDirectory:
	case tarball.TypeSymlink:
		e.Linkname = d.text()
	case tarball.TypeFile:
		e.Size = d.number()
		copy(e.Digest[:], d.take(int64(len(e.Digest))))
	default:
		d.fail()
	}
	if e.Mode&^fs.ModePerm != 0 || !less(last, e.Name) {
		d.fail()
	}
	if d.bad {
		return nil
	}
	return e
}
