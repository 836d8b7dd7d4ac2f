// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package toc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"

	"github.com/klauspost/compress/flate"
)

// Reader reads a range of the tar. It is safe for use by several goroutines.
type Reader struct {
	ctx     context.Context
	x       *Index
	archive Opener
	base    int64
	size    int64

	mu     sync.Mutex
	at     int64
	open   *stream
	err    error // that of the last read that failed
	closed bool
}

var (
	errClosed = errors.New("reader is closed")
	errSeek   = errors.New("seek before the start")
)

var _ io.ReadSeekCloser = &Reader{}

// Read returns a reader of size bytes of the tar from offset, which lie in it. Archive opens the archive, and is called
// when a read needs it. Bytes are given out after they were checked, 64 KiB at a time. The caller closes the reader, and
// uses the index no more before that.
func (x *Index) Read(ctx context.Context, archive Opener, offset, size int64) (*Reader, error) {
	if offset < 0 || size < 0 || size > x.tarSize || offset > x.tarSize-size {
		return nil, fmt.Errorf("%w: %d bytes at %d of a tar of %d", ErrDamaged, size, offset, x.tarSize)
	}
	return &Reader{ctx: ctx, x: x, archive: archive, base: offset, size: size}, nil
}

func (r *Reader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return 0, errClosed
	case r.at >= r.size:
		return 0, io.EOF
	case len(p) == 0:
		return 0, nil
	}
	n, err := r.read(p[:min(int64(len(p)), r.size-r.at)])
	r.at += int64(n)
	if err != nil {
		r.err = err
		r.release()
	}
	return n, err
}

func (r *Reader) read(p []byte) (int, error) {
	if r.open == nil {
		var err error
		if r.open, err = r.x.stream(r.ctx, r.archive, r.base+r.at, r.base+r.size); err != nil {
			return 0, err
		}
	}
	return r.open.read(r.ctx, p)
}

// Seek moves within the range. It never fails but for a place before the start.
func (r *Reader) Seek(offset int64, whence int) (int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch whence {
	case io.SeekCurrent:
		offset += r.at
	case io.SeekEnd:
		offset += r.size
	}
	if offset < 0 {
		return 0, errSeek
	}
	if offset != r.at {
		r.release()
		r.at = offset
	}
	return offset, nil
}

// Err returns the error of the last Read that failed, other than with io.EOF.
func (r *Reader) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Close ends the reading for good.
func (r *Reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.release()
	return nil
}

func (r *Reader) release() {
	if r.open != nil {
		r.open.close()
		r.open = nil
	}
}

// stripe returns the record of a stripe.
func (x *Index) stripe(ctx context.Context, i int64) (*stripe, error) {
	places, err := x.part(ctx, x.stripes, kindMap)
	if err != nil {
		return nil, err
	}
	n := i / stripesPerPart
	if 8*(n+1) > int64(len(places)) {
		return nil, fmt.Errorf("%w: it has no stripe %d", ErrDamaged, i)
	}
	count := (x.tarSize + stripeSize - 1) / stripeSize
	records := min(count-n*stripesPerPart, stripesPerPart)
	at := pointer{int64(binary.LittleEndian.Uint64(places[8*n:])), 1 + records*stripeRecord + checksumSize}
	b, err := x.part(ctx, at, kindStripes)
	if err != nil {
		return nil, err
	}
	s := decodeStripe(b[i%stripesPerPart*stripeRecord:])
	if s.from.tar < 0 || s.from.tar > i*stripeSize || s.from.gzip < 0 || s.from.gzip > x.size || s.from.bits > 7 || s.from.window.offset < 0 {
		return nil, fmt.Errorf("%w: stripe %d begins where nothing can", ErrDamaged, i)
	}
	return &s, nil
}

// stream reads on in the tar.
type stream struct {
	x       *Index
	archive io.ReadCloser
	decoder *decoders
	inflate io.Reader
	at      int64  // of what comes after the block
	rest    []byte // of the block, checked
}

// decoders are what is used again.
type decoders struct {
	buffered *bufio.Reader
	inflate  io.ReadCloser
	block    [blockSize]byte
}

var pool = sync.Pool{New: func() any {
	d := &decoders{buffered: bufio.NewReaderSize(nil, 32<<10)}
	d.inflate = flate.NewReader(d.buffered)
	return d
}}

// stream begins to read at start of the tar. No more is wanted than what lies before end.
func (x *Index) stream(ctx context.Context, archive Opener, start, end int64) (*stream, error) {
	first, err := x.stripe(ctx, start/stripeSize)
	if err != nil {
		return nil, err
	}
	length, err := x.length(ctx, first, end)
	if err != nil {
		return nil, err
	}
	s := &stream{x: x, at: start - start%blockSize}
	window, err := x.window(ctx, first)
	if err != nil {
		return nil, err
	}
	if s.archive, err = archive(ctx, first.from.gzip, length); err != nil {
		return nil, err
	}
	s.decoder = pool.Get().(*decoders)
	if err := s.begin(ctx, first, window, start); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// begin moves from the checkpoint to start, and checks the block that holds it.
func (s *stream) begin(ctx context.Context, first *stripe, window []byte, start int64) error {
	s.decoder.buffered.Reset(s.archive)
	if first.from.bits == 0 && len(window) == 0 {
		s.inflate = s.decoder.inflate
		if err := s.decoder.inflate.(flate.Resetter).Reset(s.decoder.buffered, nil); err != nil {
			return err
		}
	} else {
		at := flate.InflateCheckpoint{BitOffset: first.from.bits, Window: window}
		s.inflate = flate.NewReaderOpts(s.decoder.buffered, flate.WithResumeFrom(at))
	}
	for skip := s.at - first.from.tar; skip > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.ReadFull(s.inflate, s.decoder.block[:min(skip, blockSize)])
		if err != nil {
			return s.failed(err)
		}
		skip -= int64(n)
	}
	if err := s.fill(ctx); err != nil {
		return err
	}
	s.rest = s.rest[start%blockSize:]
	return nil
}

func (s *stream) read(ctx context.Context, p []byte) (int, error) {
	if len(s.rest) == 0 {
		if err := s.fill(ctx); err != nil {
			return 0, err
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// fill reads and checks the next block.
func (s *stream) fill(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	record, err := s.x.stripe(ctx, s.at/stripeSize)
	if err != nil {
		return err
	}
	block := s.decoder.block[:min(blockSize, s.x.tarSize-s.at)]
	if _, err := io.ReadFull(s.inflate, block); err != nil {
		return s.failed(err)
	}
	if crc32.Checksum(block, castagnoli) != record.blocks[s.at%stripeSize/blockSize] {
		return fmt.Errorf("%w: wrong checksum at %d of the tar", ErrMismatch, s.at)
	}
	s.at += int64(len(block))
	s.rest = block
	return nil
}

// failed tells what is wrong with the archive from an error of its store.
func (s *stream) failed(err error) error {
	var corrupt flate.CorruptInputError
	if err == io.EOF || err == io.ErrUnexpectedEOF || errors.As(err, &corrupt) {
		return fmt.Errorf("%w: inflate at %d of the tar: %w", ErrMismatch, s.at, err)
	}
	return fmt.Errorf("read archive: %w", err)
}

func (s *stream) close() {
	// Nothing was written, so nothing is lost by an error here.
	_ = s.archive.Close()
	s.decoder.buffered.Reset(nil)
	pool.Put(s.decoder)
	s.decoder, s.rest = nil, nil
}

// lookAhead is how many stripes are looked at to find where the wanted part of the archive ends.
const lookAhead = 4

// length returns how much of the archive holds the tar from a stripe to end, or -1 for all the rest.
func (x *Index) length(ctx context.Context, first *stripe, end int64) (int64, error) {
	end = min((end+blockSize-1)/blockSize*blockSize, x.tarSize)
	count := (x.tarSize + stripeSize - 1) / stripeSize
	from := (end + stripeSize - 1) / stripeSize
	for i := from; i < min(from+lookAhead, count); i++ {
		s, err := x.stripe(ctx, i)
		if err != nil {
			return 0, err
		}
		if s.from.tar >= end && s.from.gzip >= first.from.gzip {
			// The byte that a checkpoint lies in belongs to both sides.
			return s.from.gzip + 1 - first.from.gzip, nil
		}
	}
	return -1, nil
}

// window returns the window of a stripe's checkpoint, nil where it needs none.
func (x *Index) window(ctx context.Context, s *stripe) ([]byte, error) {
	if s.from.window.length == 0 {
		return nil, nil
	}
	b, err := x.part(ctx, s.from.window, kindWindow)
	if err != nil {
		return nil, err
	}
	window := make([]byte, 32<<10)
	n, err := io.ReadFull(flate.NewReader(bytes.NewReader(b)), window)
	if err != nil && err != io.ErrUnexpectedEOF {
		return nil, fmt.Errorf("%w: a window: %w", ErrDamaged, err)
	}
	return window[:n], nil
}
