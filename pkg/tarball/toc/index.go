// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package toc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"strings"

	"rukpak.io/apiserver/pkg/tarball"
)

const (
	// headLength is how much of an index is read at once when it is opened. Most are not longer.
	headLength = 64 << 10
	// maxKept bounds the parts that are kept in memory beside the head.
	maxKept = 32
	// maxOffset bounds offsets and sizes, so that sums of them do not overflow.
	maxOffset = 1 << 60
)

// Index reads an index. It belongs to one goroutine, and so do the readers that it gives.
type Index struct {
	open Opener
	head []byte
	header
	kept map[int64][]byte
	// unchecked leaves out the checksums, so that tests reach what is behind them.
	unchecked bool
}

// Open begins to read the index of the archive with a digest.
func Open(ctx context.Context, digest string, open Opener) (*Index, error) {
	x := &Index{open: open, kept: map[int64][]byte{}}
	var err error
	if x.head, err = x.read(ctx, 0, headLength); err != nil {
		return nil, err
	}
	h, err := decodeHeader(x.head, digest)
	if err != nil {
		return nil, err
	}
	x.header = *h
	return x, nil
}

// Entries is how many entries the archive has.
func (x *Index) Entries() int64 { return x.entries }

// TarSize is the length of the tar.
func (x *Index) TarSize() int64 { return x.tarSize }

// TarDigest is the digest of the tar.
func (x *Index) TarDigest() string { return x.tarDigest }

// read reads length bytes of the index, or as many as there are.
func (x *Index) read(ctx context.Context, offset, length int64) ([]byte, error) {
	r, err := x.open(ctx, offset, length)
	if err != nil {
		return nil, err
	}
	b := make([]byte, length)
	n, err := io.ReadFull(r, b)
	if err == io.ErrUnexpectedEOF || err == io.EOF {
		err = nil
	}
	if err := errors.Join(err, r.Close()); err != nil {
		return nil, fmt.Errorf("read index: %w", err)
	}
	return b[:n], nil
}

// part returns what a part of a kind holds, without its first byte and its checksum.
func (x *Index) part(ctx context.Context, at pointer, kind byte) ([]byte, error) {
	if b, ok := x.kept[at.offset]; ok && b[0] == kind && int64(len(b)) == at.length-checksumSize {
		return b[1:], nil
	}
	if at.offset < headerSize || at.offset > maxOffset || at.length <= checksumSize || at.length > maxPart {
		return nil, fmt.Errorf("%w: there can be no part of %d bytes at %d", ErrDamaged, at.length, at.offset)
	}
	var b []byte
	if at.offset+at.length <= int64(len(x.head)) {
		b = x.head[at.offset : at.offset+at.length]
	} else {
		var err error
		if b, err = x.read(ctx, at.offset, at.length); err != nil {
			return nil, err
		}
	}
	end := len(b) - checksumSize
	if int64(len(b)) != at.length || !x.unchecked && crc32.Checksum(b[:end], castagnoli) != binary.LittleEndian.Uint32(b[end:]) {
		return nil, fmt.Errorf("%w: wrong checksum of the part at %d", ErrDamaged, at.offset)
	}
	if b[0] != kind {
		return nil, fmt.Errorf("%w: the part at %d is of the kind %q, not %q", ErrDamaged, at.offset, b[0], kind)
	}
	if len(x.kept) >= maxKept {
		clear(x.kept)
	}
	x.kept[at.offset] = b[:end]
	return b[1:end], nil
}

// Lookup returns the entry with a name, in the form of an entry's name. If there is none, the error is fs.ErrNotExist. It
// follows no link.
func (x *Index) Lookup(ctx context.Context, name string) (*Entry, error) {
	c := cursor{x: x}
	if err := c.seek(ctx, name); err != nil {
		return nil, err
	}
	e, err := c.next(ctx)
	if err != nil {
		return nil, err
	}
	if e == nil || e.Name != name {
		return nil, fmt.Errorf("%q: %w", name, fs.ErrNotExist)
	}
	return e, nil
}

// List calls yield for the entries in the directory with a name, in canonical order, and, if recursive, for those below
// them. The root is "". With after, a path below the directory, it begins behind that one, be it there or not. An error
// of yield ends it.
func (x *Index) List(ctx context.Context, name, after string, recursive bool, yield func(*Entry) error) error {
	prefix := ""
	if name != "" {
		prefix = name + "/"
	}
	from := prefix
	switch top, _, _ := strings.Cut(after, "/"); {
	case after == "":
	case recursive:
		from += after + "/"
	default:
		from += top + "\x00" // what is below it lies before
	}
	c := cursor{x: x}
	if err := c.seek(ctx, from); err != nil {
		return err
	}
	for {
		e, err := c.next(ctx)
		if err != nil {
			return err
		}
		if e == nil || len(e.Name) < len(prefix) || e.Name[:len(prefix)] != prefix {
			return nil
		}
		if err := yield(e); err != nil {
			return err
		}
		if e.Type == tarball.TypeDirectory && !recursive {
			if err := c.leave(ctx, e.Name); err != nil {
				return err
			}
		}
	}
}
