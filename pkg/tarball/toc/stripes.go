// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package toc

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"slices"

	"github.com/klauspost/compress/flate"

	"rukpak.io/apiserver/pkg/tarball"
)

// stripeRecord is the length of what is kept of a stripe: the checkpoint as two numbers of 8 bytes, offset and length of its
// window as 8 and 4, the bits as 1, and the checksums of the blocks.
const stripeRecord = 8 + 8 + 8 + 4 + 1 + blocksPerStripe*checksumSize

// entrance is a checkpoint whose window is in a part.
type entrance struct {
	tar, gzip int64
	bits      uint8
	window    pointer
}

// stripe is a record.
type stripe struct {
	from   entrance
	blocks [blocksPerStripe]uint32
}

func (s *stripe) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(s.from.tar))
	b = binary.LittleEndian.AppendUint64(b, uint64(s.from.gzip))
	b = binary.LittleEndian.AppendUint64(b, uint64(s.from.window.offset))
	b = binary.LittleEndian.AppendUint32(b, uint32(s.from.window.length))
	b = append(b, s.from.bits)
	for _, sum := range s.blocks {
		b = binary.LittleEndian.AppendUint32(b, sum)
	}
	return b
}

// decodeStripe reads a record of stripeRecord bytes.
func decodeStripe(b []byte) (s stripe) {
	s.from.tar = int64(binary.LittleEndian.Uint64(b))
	s.from.gzip = int64(binary.LittleEndian.Uint64(b[8:]))
	s.from.window.offset = int64(binary.LittleEndian.Uint64(b[16:]))
	s.from.window.length = int64(binary.LittleEndian.Uint32(b[24:]))
	s.from.bits = b[28]
	for i := range s.blocks {
		s.blocks[i] = binary.LittleEndian.Uint32(b[29+4*i:])
	}
	return s
}

// stripes writes the parts about the bytes of the tar.
type stripes struct {
	write   func([]byte) pointer
	size    int64 // of the tar so far
	now     stripe
	sum     uint32 // of the block so far
	pending []entrance
	part    []byte
	offsets []int64 // of the parts
	deflate *flate.Writer
}

func (s *stripes) checkpoint(c tarball.Checkpoint) {
	e := entrance{tar: c.Tar, gzip: c.Gzip, bits: c.Bits}
	if len(c.Window) > 0 {
		e.window = s.window(c.Window)
	}
	s.pending = append(s.pending, e)
}

// window writes a window. Deflating into memory does not fail; a window that is not all there would not pass for one.
func (s *stripes) window(w []byte) pointer {
	out := bytes.NewBuffer([]byte{kindWindow})
	if s.deflate == nil {
		// The level is one that there is.
		s.deflate, _ = flate.NewWriter(out, flate.BestSpeed)
	} else {
		s.deflate.Reset(out)
	}
	_, _ = s.deflate.Write(w)
	_ = s.deflate.Close()
	return s.write(out.Bytes())
}

func (s *stripes) add(p []byte) {
	for len(p) > 0 {
		if s.size%stripeSize == 0 {
			s.begin()
		}
		n := min(len(p), int(blockSize-s.size%blockSize))
		s.sum = crc32.Update(s.sum, castagnoli, p[:n])
		s.size += int64(n)
		p = p[n:]
		if s.size%blockSize == 0 {
			s.endBlock()
		}
		if s.size%stripeSize == 0 {
			s.endStripe()
		}
	}
}

// begin chooses the last checkpoint in front of the stripe.
func (s *stripes) begin() {
	for len(s.pending) > 0 && s.pending[0].tar <= s.size {
		s.now.from = s.pending[0]
		s.pending = slices.Delete(s.pending, 0, 1)
	}
}

func (s *stripes) endBlock() {
	s.now.blocks[(s.size-1)%stripeSize/blockSize], s.sum = s.sum, 0
}

func (s *stripes) endStripe() {
	if len(s.part) == 0 {
		s.part = append(s.part, kindStripes)
	}
	s.part = s.now.append(s.part)
	s.now.blocks = [blocksPerStripe]uint32{}
	if len(s.part) == 1+stripesPerPart*stripeRecord {
		s.endPart()
	}
}

func (s *stripes) endPart() {
	s.offsets = append(s.offsets, s.write(s.part).offset)
	s.part = s.part[:0]
}

// finish writes what is not written, and returns where the map is.
func (s *stripes) finish() pointer {
	if s.size%blockSize != 0 {
		s.endBlock()
	}
	if s.size%stripeSize != 0 {
		s.endStripe()
	}
	if len(s.part) > 0 {
		s.endPart()
	}
	places := []byte{kindMap}
	for _, offset := range s.offsets {
		places = binary.LittleEndian.AppendUint64(places, uint64(offset))
	}
	return s.write(places)
}
