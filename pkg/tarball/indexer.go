// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"crypto/sha256"
	"hash"
	"io"
)

// Indexer is told where things are in an archive while it goes by, so that parts of it can be
// read later without the rest. Package toc keeps what it is told.
//
// Tar and Checkpoint are called by one goroutine, Entry by one that may be another. Nothing that
// they are given may be kept after they return. They have no error: an archive is good or not
// whether it could be indexed or not.
type Indexer interface {
	// Entry is called for every entry, in canonical order, when its content has gone by. Offset is
	// where in the tar the content begins; digest is the SHA-256 of a
	// regular file's content, and zero for what is none.
	Entry(e Entry, offset int64, digest [sha256.Size]byte)
	// Tar takes the next bytes of the tar.
	Tar(p []byte)
	// Checkpoint names a place where reading can begin. They ascend, and each comes before Tar takes
	// what follows it. The first is the start.
	Checkpoint(c Checkpoint)
}

// Checkpoint is the end of a deflate block.
type Checkpoint struct {
	// Tar is the offset in the tar of the first byte after it.
	Tar int64
	// Gzip is the offset in the gzip of the byte that holds the first bit after it, and Bits how many
	// bits of that byte lie before it.
	Gzip int64
	Bits uint8
	// Window is what deflate may refer back to, up to 32 KiB of the tar before it. It is empty
	// where what follows stands alone.
	Window []byte
}

// hashingReader hashes what is read through it.
type hashingReader struct {
	r    io.Reader
	hash hash.Hash
}

func (h *hashingReader) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	h.hash.Write(p[:n])
	return n, err
}

// fileHash returns the digest of what was written to h, the content of e, and makes h ready for the next file. What is no
// file has no digest.
func fileHash(e Entry, h hash.Hash) (digest [sha256.Size]byte) {
	if e.Type == TypeFile {
		h.Sum(digest[:0])
		h.Reset()
	}
	return digest
}
