// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
)

// archive writes a canonical archive from entries that come in canonical order.
type archive struct {
	ctx    context.Context
	meter  meter
	out    *sink
	gzip   *gzipWriter
	index  Indexer // may be nil
	digest func() string
	file   hash.Hash // of the content of one file
	header []byte
	ended  bool
}

// newArchive begins an archive on w. Finish or abort must follow; until either
// returns, another goroutine writes to w.
func newArchive(ctx context.Context, w io.Writer, limits Limits, opts Options) *archive {
	out := &sink{w: w, max: limits.CompressedBytes}
	if opts.Digest == nil {
		out.hash = sha256.New()
		opts.Digest = func() string { return digest(out.hash) }
	}
	return &archive{
		ctx:    ctx,
		meter:  newMeter(limits),
		out:    out,
		gzip:   newGzipWriter(out, sha256.New(), opts.Index),
		index:  opts.Index,
		digest: opts.Digest,
		file:   sha256.New(),
	}
}

// add writes an entry and, for a regular file, e.Size bytes of content. The
// name and the link were checked before. An error of content is an *EntryError.
func (a *archive) add(e Entry, content io.Reader) error {
	if err := a.ctx.Err(); err != nil {
		return err
	}
	a.header = appendHeader(a.header[:0], e)
	offset := a.meter.bytes - endSize + int64(len(a.header))
	if err := a.meter.add(e, len(a.header)); err != nil {
		return err
	}
	if _, err := a.gzip.Write(a.header); err != nil {
		return at(e.Name, err)
	}
	if e.Size == 0 {
		a.indexed(e, offset)
		return nil
	}
	if a.index != nil {
		content = &hashingReader{content, a.file}
	}
	_, fromReader, err := a.gzip.readFrom(contextReader{a.ctx, content}, e.Size)
	switch {
	case err != nil && a.ctx.Err() != nil:
		return a.ctx.Err()
	case fromReader:
		return failed(e.Name, "cannot be read", err)
	case err != nil:
		return at(e.Name, err)
	}
	if _, err := a.gzip.Write(zeros[:padding(e.Size)]); err != nil {
		return at(e.Name, err)
	}
	a.indexed(e, offset)
	return nil
}

// indexed tells the index of an entry that was written.
func (a *archive) indexed(e Entry, offset int64) {
	if a.index != nil {
		a.index.Entry(e, offset, fileHash(e, a.file))
	}
}

// finish ends the archive and returns what was written.
func (a *archive) finish() (Summary, error) {
	a.ended = true
	if _, err := a.gzip.Write(zeros[:endSize]); err != nil {
		a.gzip.abort()
		return Summary{}, err
	}
	if err := a.gzip.close(a.out); err != nil {
		return Summary{}, err
	}
	if err := a.meter.limits.checkRatio(a.out.size, a.meter.bytes); err != nil {
		return Summary{}, err
	}
	return Summary{
		Digest:             a.digest(),
		Size:               a.out.size,
		UncompressedDigest: digest(a.gzip.plain),
		UncompressedSize:   a.meter.bytes,
		Files:              a.meter.files,
	}, nil
}

// abort leaves the archive without an end. After finish it does nothing.
func (a *archive) abort() {
	if !a.ended {
		a.ended = true
		a.gzip.abort()
	}
}

func digest(h hash.Hash) string { return "sha256:" + hex.EncodeToString(h.Sum(nil)) }

// sink hashes, counts and limits what goes to w.
type sink struct {
	w    io.Writer
	hash hash.Hash // nil if nobody asks for the digest
	size int64
	max  int64
}

func (s *sink) Write(p []byte) (int, error) {
	if int64(len(p)) > s.max-s.size {
		return 0, exceeds(LimitCompressedBytes, s.max, "")
	}
	n, err := s.w.Write(p)
	if err == nil && n != len(p) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return n, fmt.Errorf("write archive: %w", err)
	}
	if s.hash != nil {
		s.hash.Write(p)
	}
	s.size += int64(n)
	return n, nil
}

// source hashes, counts and limits what comes from r, and remembers its error,
// so that those of the decoders above it can be told from it.
type source struct {
	ctx  context.Context
	r    io.Reader
	hash hash.Hash // nil if nobody asks for the digest
	size int64
	max  int64
	err  error // the first error but io.EOF
}

func (s *source) Read(p []byte) (int, error) {
	if s.err == nil {
		s.err = s.ctx.Err()
	}
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.r.Read(p)
	if int64(n) > s.max-s.size {
		s.err = exceeds(LimitCompressedBytes, s.max, "")
		return 0, s.err
	}
	if s.hash != nil {
		s.hash.Write(p[:n])
	}
	s.size += int64(n)
	if err != nil && err != io.EOF {
		s.err = fmt.Errorf("read archive: %w", err)
		err = s.err
	}
	return n, err
}

// contextReader stops reading when its context ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
