// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tarball writes, rewrites and checks the canonical archive: a
// gzip-compressed tar whose tar bytes are a function of the file tree alone.
// docs/format.md is its specification.
//
// Pack makes one from a folder on disk, Canonicalize from any tar or tar.gz,
// and Verify checks one while it streams by:
//
//	summary, err := tarball.Pack(ctx, w, "/image", "manifests", limits)
//	summary, err := tarball.Canonicalize(ctx, w, body, tarball.Options{Limits: limits})
//	summary, err := tarball.Verify(ctx, io.TeeReader(body, store), limits, visit)
//
// All three enforce the same Limits and name the entry at fault in an
// *EntryError or a *LimitError. None keeps file contents in memory.
package tarball

import (
	"io"
	"io/fs"
)

const (
	// Format is the version of the canonical archive that this package writes and accepts.
	Format = "v1"
	// MediaType is the media type of a canonical archive. The compression is
	// part of the representation, never a Content-Encoding.
	MediaType = "application/gzip"
)

// Bounds that hold where Limits leaves them at zero.
const (
	// DefaultPathLength is the longest path of an entry and the longest target
	// of a symbolic link, in bytes.
	DefaultPathLength = 4096
	// DefaultDepth is how many components a path may have.
	DefaultDepth = 100
	// DefaultRatio is how many times larger than the gzip the tar may be, once
	// the tar is larger than RatioFloor. YAML is compressed 5 to 20 times;
	// deflate cannot exceed 1032.
	DefaultRatio = 200
)

// RatioFloor is the size of a tar, in bytes, up to which its ratio is not judged.
const RatioFloor = 64 << 20

// MaxComponentLength is the longest component of a path, in bytes. Common file
// systems cannot hold longer ones.
const MaxComponentLength = 255

// Limits bound what one archive may be. They hold inclusively.
type Limits struct {
	// CompressedBytes bounds the gzip, in bytes: what is written, and what is
	// read where the input is a gzip. 0 means unlimited.
	CompressedBytes int64
	// Bytes bounds the canonical tar, in bytes, headers and padding included.
	// 0 means unlimited.
	Bytes int64
	// Files bounds the entries that are not directories. The directories are
	// bounded too, by 2*Files+1000. 0 means unlimited, for both.
	Files int64
	// PathLength bounds a path and a link target, in bytes. 0 means DefaultPathLength.
	PathLength int64
	// Depth bounds the components of a path. 0 means DefaultDepth.
	Depth int64
	// Ratio bounds the size of the tar over that of its gzip, for tars larger
	// than RatioFloor. 0 means DefaultRatio.
	Ratio int64
}

// Summary describes a canonical archive.
type Summary struct {
	// Digest is that of the gzip bytes, as "sha256:" and 64 lower-case hexadecimal digits.
	Digest string
	// Size is the length of the gzip in bytes.
	Size int64
	// UncompressedDigest is that of the tar bytes. It depends on the tree alone.
	UncompressedDigest string
	// UncompressedSize is the length of the tar in bytes, end-of-archive blocks included.
	UncompressedSize int64
	// Files counts the entries that are not directories.
	Files int64
}

// Type is what an entry is. A canonical archive holds nothing else.
type Type byte

const (
	// TypeFile is a regular file.
	TypeFile Type = '0'
	// TypeSymlink is a symbolic link.
	TypeSymlink Type = '2'
	// TypeDirectory is a directory.
	TypeDirectory Type = '5'
)

// Entry is one entry of a canonical archive.
type Entry struct {
	// Name is the path below the root, slash-separated and clean: no leading
	// or trailing slash, no empty, "." or ".." component. It need not be UTF-8.
	Name string
	// Type is what the entry is.
	Type Type
	// Mode holds the nine permission bits and nothing else; a symbolic link has 0777.
	Mode fs.FileMode
	// Size is the length of a regular file's content in bytes, else 0.
	Size int64
	// Linkname is the target of a symbolic link, else empty.
	Linkname string
}

// Visitor looks at an archive's entries as they go by. It is called for every
// entry, in canonical order. Content yields a regular file's bytes, is empty
// for everything else, and is valid until the call returns; it need not be
// read to its end. An error refuses the archive; it comes back inside an
// *EntryError for this entry.
type Visitor func(e Entry, content io.Reader) error

// Options say how VerifyIndexed reads an archive, and how Canonicalize reads and rewrites one. Path and Scratch are for
// Canonicalize alone.
type Options struct {
	// Limits bound the canonical archive. What is read but lies outside Path
	// counts too, against four times these limits.
	Limits Limits
	// Path names a directory of the archive that becomes the root, in the form
	// of an entry's name; a leading slash is allowed. Empty, "." and "/" mean
	// the whole archive.
	Path string
	// Scratch is an existing folder for the temporary file that holds the
	// contents of the files while they are sorted. The file has no name and
	// goes with the call. Empty means os.TempDir().
	Scratch string
	// Visit, if set, sees every entry of the canonical archive.
	Visit Visitor
	// Index, if set, is told where things are in the canonical archive.
	Index Indexer
	// Digest, if set, returns the digest of the canonical gzip once all of it was read or written, in
	// place of a hash of its own: that of a store which gets the same bytes and hashes them anyway.
	Digest func() string
}
