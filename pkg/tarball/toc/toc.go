// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package toc is the table of contents of a canonical archive: a file beside it that says which entries
// it has, and how to read any part of its tar without the rest.
//
// A Builder makes one while the archive goes by, and an Index reads from it. To look up a path, to list
// a directory and to read some bytes take a number of small reads that grows with the logarithm of the number of entries:
//
//	b, err := toc.NewBuilder(scratch)
//	defer b.Close()
//	summary, err := tarball.VerifyIndexed(ctx, body, tarball.Options{Limits: limits, Index: b})
//	r, size, err := b.Finish(summary)           // keep these bytes
//
//	x, err := toc.Open(ctx, summary.Digest, openIndex)
//	entry, err := x.Lookup(ctx, "manifests/app.yaml")
//	content := x.Read(ctx, openArchive, entry.Offset, entry.Size)
//
// What is read from the archive is checked against the index, so that neither gives wrong bytes: a
// part of the index that is not what was written gives ErrDamaged, a part of the archive that is not gives ErrMismatch.
//
// # Format
//
// A file is a header and parts behind it, all numbers little-endian. Each part ends with the CRC-32C of
// what stands before it in the part, and begins with a byte that says what it is.
//
//	header  160 bytes: see header.go
//	'L'     leaf: entries in canonical order; each name without what it shares with the name before
//	'N'     node: for each child, a leaf or a node, the first name below it, and its offset and length
//	'S'     stripes: for each 512 KiB of the tar, the checkpoint where reading begins and the
//	        CRC-32C of each of its eight blocks of 64 KiB; 64 stripes in a part
//	'W'     window: what a checkpoint needs that does not stand alone, deflated
//	'M'     map: the offset of each part with stripes
//
// A part stands before every part that refers to it.
package toc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"io"

	"rukpak.io/apiserver/pkg/tarball"
)

// Version is that of the format. An index of another version is ErrDamaged: it is made anew.
const Version = 1

var (
	// ErrDamaged is in the error when an index is not what a Builder wrote, or that of another archive.
	ErrDamaged = errors.New("index is damaged")
	// ErrMismatch is in the error when the archive is not what the index says.
	ErrMismatch = errors.New("archive does not fit its index")
	// ErrLoop is in the error when symbolic links lead in a circle.
	ErrLoop = errors.New("too many symbolic links")
	// ErrNotDirectory is in the error when a path leads through something that is no directory.
	ErrNotDirectory = errors.New("not a directory")
)

// Opener opens a part of an archive or of an index: length bytes from offset, or to the end if length is
// negative or more than there is.
type Opener func(ctx context.Context, offset, length int64) (io.ReadCloser, error)

// Entry is an entry of an archive.
type Entry struct {
	tarball.Entry
	// Offset is where in the tar its content begins.
	Offset int64
	// Digest is the SHA-256 of a regular file's content.
	Digest [sha256.Size]byte
}

// DigestString is the digest as "sha256:" and hexadecimal digits, and empty for what is no regular file.
func (e *Entry) DigestString() string {
	if e.Type != tarball.TypeFile {
		return ""
	}
	return "sha256:" + hex.EncodeToString(e.Digest[:])
}

const (
	// stripeSize is how much of the tar has a record of its own.
	stripeSize = 512 << 10
	// blockSize is how much of the tar is checked at a time.
	blockSize       = 64 << 10
	blocksPerStripe = stripeSize / blockSize
	stripesPerPart  = 64

	kindLeaf    = 'L'
	kindNode    = 'N'
	kindStripes = 'S'
	kindWindow  = 'W'
	kindMap     = 'M'

	checksumSize = 4
	// fullPart is when a leaf or a node is full, in bytes.
	fullPart = 16 << 10
	// maxPart bounds a part that is read, in bytes. The map of a tar of 4 TiB is as long; all else is far shorter.
	maxPart = 1 << 20
	// maxHeight bounds the nodes above a leaf. Each holds hundreds of children as a rule.
	maxHeight = 16
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// pointer is where a part is.
type pointer struct {
	offset int64
	length int64
}

// less compares names in canonical order: as bytes, but a slash comes before everything else.
func less(a, b string) bool {
	for i := range min(len(a), len(b)) {
		if x, y := a[i], b[i]; x != y {
			return x == '/' || (y != '/' && x < y)
		}
	}
	return len(a) < len(b)
}
