// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package toc

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"strings"

	"rukpak.io/apiserver/pkg/tarball"
)

const (
	headerSize = 160
	magic      = "rukpkTOC"
)

// header is the first part of an index. In the file, in this order: the magic, the version as 4 bytes and the height as
// 4, the two digests raw, the numbers as 8 bytes each, zeros, and the CRC-32C of all of it.
type header struct {
	digest    string // of the archive
	tarDigest string
	size      int64 // of the archive
	tarSize   int64
	entries   int64
	root      pointer // of the tree of entries; nothing if there are none
	stripes   pointer // of the map
	height    int     // nodes above each leaf
}

func (h *header) encode() ([]byte, error) {
	b := append(make([]byte, 0, headerSize), magic...)
	b = binary.LittleEndian.AppendUint32(b, Version)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.height))
	for _, digest := range []string{h.digest, h.tarDigest} {
		raw, err := hex.DecodeString(strings.TrimPrefix(digest, "sha256:"))
		if err != nil || len(raw) != 32 {
			return nil, fmt.Errorf("%q is no digest", digest)
		}
		b = append(b, raw...)
	}
	for _, n := range []int64{h.size, h.tarSize, h.entries, h.root.offset, h.root.length, h.stripes.offset, h.stripes.length} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	b = b[:headerSize-checksumSize]
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

// decodeHeader reads the header of the index of the archive with a digest.
func decodeHeader(b []byte, digest string) (*header, error) {
	if len(b) < headerSize || string(b[:len(magic)]) != magic {
		return nil, fmt.Errorf("%w: it does not begin as one", ErrDamaged)
	}
	b = b[:headerSize]
	version := binary.LittleEndian.Uint32(b[len(magic):])
	if version != Version {
		return nil, fmt.Errorf("%w: it has the version %d, not %d", ErrDamaged, version, Version)
	}
	if crc32.Checksum(b[:headerSize-checksumSize], castagnoli) != binary.LittleEndian.Uint32(b[headerSize-checksumSize:]) {
		return nil, fmt.Errorf("%w: wrong checksum of the header", ErrDamaged)
	}
	h := &header{height: int(binary.LittleEndian.Uint32(b[12:]))}
	h.digest, h.tarDigest = "sha256:"+hex.EncodeToString(b[16:48]), "sha256:"+hex.EncodeToString(b[48:80])
	for i, n := range []*int64{&h.size, &h.tarSize, &h.entries, &h.root.offset, &h.root.length, &h.stripes.offset, &h.stripes.length} {
		*n = int64(binary.LittleEndian.Uint64(b[80+8*i:]))
		if *n < 0 || *n > maxOffset {
			return nil, fmt.Errorf("%w: a number in the header cannot be", ErrDamaged)
		}
	}
	if h.digest != digest {
		return nil, fmt.Errorf("%w: it is that of %s, not %s", ErrDamaged, h.digest, digest)
	}
	if h.height > maxHeight {
		return nil, fmt.Errorf("%w: the tree has the height %d", ErrDamaged, h.height)
	}
	return h, nil
}

// headerOf describes an archive.
func headerOf(s tarball.Summary) *header {
	return &header{digest: s.Digest, tarDigest: s.UncompressedDigest, size: s.Size, tarSize: s.UncompressedSize}
}
