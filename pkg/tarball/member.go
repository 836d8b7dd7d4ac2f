// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/flate"
)

const (
	// gzipTrailer is the length of what follows the deflate stream: CRC-32 and size (RFC 1952).
	gzipTrailer = 8
	// windowSize is how far back deflate can refer.
	windowSize = 32 << 10
	// aloneGap and windowGap are how much of the tar lies between checkpoints at least: of those that stand alone, and of
	// those that need a window, which is kept with them.
	aloneGap  = chunkSize
	windowGap = 2 * chunkSize
	// trialSize is how much of the gzip is looked at to see whether a checkpoint stands alone. A window's worth of the tar
	// takes no more, unless its codes are made to be long.
	trialSize = 48 << 10
	// blockBytes and spareBlocks bound the deflate blocks of a gzip: one for so many bytes of its tar, and so many more.
	// Real compressors make blocks of many KiB; tiny ones only cost the reader time.
	blockBytes  = 256
	spareBlocks = 16 << 10
)

var (
	errChecksum = errors.New("gzip: wrong CRC-32 or size")
	errTrial    = errors.New("does not stand alone")
)

// member reads the deflate stream of a gzip member whose header was read, and then its trailer.
type member struct {
	src     *source
	gzip    *bufio.Reader // over src
	inflate io.Reader
	crc     uint32
	size    uint32
	ended   bool

	blocks  int64
	index   Indexer // may be nil
	last    int64   // Tar of the last checkpoint
	drift   int64   // how much too far the decoder says that it is
	trial   io.ReadCloser
	scratch [windowSize]byte
}

// newMember begins to read what follows the gzip header in gzip, which reads from src.
func newMember(src *source, gzip *bufio.Reader, index Indexer) *member {
	m := &member{src: src, gzip: gzip, index: index}
	m.inflate = flate.NewReaderOpts(gzip, flate.WithEobCallback(m.block))
	if index != nil {
		m.trial = flate.NewReader(bytes.NewReader(nil))
		index.Checkpoint(Checkpoint{Gzip: m.consumed()})
	}
	return m
}

// consumed is how much of the gzip has been taken.
func (m *member) consumed() int64 { return m.src.size - int64(m.gzip.Buffered()) }

func (m *member) Read(p []byte) (int, error) {
	if m.ended {
		return 0, io.EOF
	}
	n, err := m.inflate.Read(p)
	m.crc = crc32.Update(m.crc, crc32.IEEETable, p[:n])
	m.size += uint32(n)
	if err == io.EOF {
		m.ended = true
		if err := m.checkTrailer(); err != nil {
			return n, err
		}
	}
	return n, err
}

func (m *member) checkTrailer() error {
	var trailer [gzipTrailer]byte
	if _, err := io.ReadFull(m.gzip, trailer[:]); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	if binary.LittleEndian.Uint32(trailer[:4]) != m.crc || binary.LittleEndian.Uint32(trailer[4:]) != m.size {
		return errChecksum
	}
	return nil
}

// block is called at the end of each deflate block.
func (m *member) block(at flate.InflateCheckpoint) {
	m.blocks++
	if most := at.UncompressedOffset/blockBytes + spareBlocks; m.blocks > most && m.src.err == nil {
		// The decoder asks for no opinion, but for more input soon.
		m.src.err = exceeds(LimitBlocks, most, "")
	}
	// The decoder counts some bytes in front of a stored block twice. At the end of such a block it has taken nothing ahead, so
	// there the error shows; at the end of others it may have taken a little ahead, but never the opposite.
	stated := int64(len(gzipHeader)) + at.CompressedOffset
	m.drift = max(m.drift, stated-m.consumed())
	gap := at.UncompressedOffset - m.last
	if m.index == nil || at.Final || gap < aloneGap {
		return
	}
	c := Checkpoint{Tar: at.UncompressedOffset, Gzip: stated - m.drift, Bits: at.BitOffset}
	if !m.standsAlone(c) {
		if gap < windowGap {
			return
		}
		c.Window = at.Window
	}
	m.last = c.Tar
	m.index.Checkpoint(c)
}

// standsAlone reports whether what follows a checkpoint refers to nothing before it. It does so in its first 32 KiB, if at
// all: after those the decoder cannot see that far.
func (m *member) standsAlone(c Checkpoint) bool {
	if c.Bits != 0 || c.Gzip != m.consumed() {
		return false
	}
	// An error of the input comes back when that is read.
	ahead, _ := m.gzip.Peek(trialSize)
	if err := m.trial.(flate.Resetter).Reset(bytes.NewReader(ahead), nil); err != nil {
		return false
	}
	_, err := io.ReadFull(m.trial, m.scratch[:])
	// The end of the stream is io.EOF; the end of what was looked at is not.
	if err == io.ErrUnexpectedEOF {
		err = m.trialEnd()
	}
	return err == nil || err == io.EOF
}

// trialEnd tells the end of the stream from that of the input, which io.ReadFull reports in the same way.
func (m *member) trialEnd() error {
	if _, err := m.trial.Read(m.scratch[:1]); err != io.EOF {
		return fmt.Errorf("%w: %w", errTrial, err)
	}
	return nil
}
