// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
)

// maxRecordsSize bounds an extended header that is read, in bytes. A canonical
// one holds two paths at most; names a little beyond the limit are still read,
// so that the refusal can tell them.
const maxRecordsSize = 64 << 10

// Verify reads a canonical archive from r up to the end of r and checks that it
// is one, to the last byte of its tar: entries, order, headers, padding and
// end. Visit may be nil.
//
// Anything that is not as docs/format.md says gives an error that is
// ErrNotCanonical; an entry that no archive may hold, an *EntryError; an
// archive beyond the limits, a *LimitError; one that breaks off, an error that
// is io.ErrUnexpectedEOF. Memory does not depend on the archive.
func Verify(ctx context.Context, r io.Reader, limits Limits, visit Visitor) (Summary, error) {
	return VerifyIndexed(ctx, r, Options{Limits: limits, Visit: visit})
}

// VerifyIndexed does what Verify does, and tells an index where things are.
func VerifyIndexed(ctx context.Context, r io.Reader, opts Options) (Summary, error) {
	limits := opts.Limits.effective()
	v := &verifier{
		limits: limits,
		meter:  newMeter(limits),
		visit:  opts.Visit,
		index:  opts.Index,
		src:    &source{ctx: ctx, r: r, max: limits.CompressedBytes},
		file:   sha256.New(),
	}
	if opts.Digest == nil {
		v.src.hash = sha256.New()
		opts.Digest = func() string { return digest(v.src.hash) }
	}
	if err := v.verify(); err != nil {
		return Summary{}, at(v.entry, v.cause(err))
	}
	if err := limits.checkRatio(v.src.size, v.tar.size); err != nil {
		return Summary{}, err
	}
	return Summary{
		Digest:             opts.Digest(),
		Size:               v.src.size,
		UncompressedDigest: digest(v.tar.hash),
		UncompressedSize:   v.tar.size,
		Files:              v.meter.files,
	}, nil
}

type verifier struct {
	limits Limits
	meter  meter
	order  order
	visit  Visitor
	index  Indexer

	src  *source
	gzip *bufio.Reader // the gzip bytes
	tar  *plain        // the tar bytes, hashed
	in   *bufio.Reader // the tar bytes

	file   hash.Hash // of the content of one file
	entry  string    // the entry that was read last
	header []byte    // its header blocks as they were read
	want   []byte    // its header blocks as they should be
}

// plain hashes and counts the bytes of the tar, and remembers the error that
// ended them.
type plain struct {
	r     io.Reader
	hash  hash.Hash
	index Indexer
	size  int64
	err   error
}

func (p *plain) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.hash.Write(b[:n])
	if p.index != nil {
		p.index.Tar(b[:n])
	}
	p.size += int64(n)
	p.err = err
	return n, err
}

// cause returns the error to report for err: a failure of the input beats what
// was made of it further up.
func (v *verifier) cause(err error) error {
	switch {
	case v.src.err != nil:
		return v.src.err
	case v.tar == nil || v.tar.err == nil || v.tar.err == io.EOF:
		return err
	case errors.Is(v.tar.err, io.ErrUnexpectedEOF):
		return fmt.Errorf("the archive breaks off after entry %q: %w", shown(v.entry), v.tar.err)
	default:
		return fmt.Errorf("%w: damaged after entry %q: %w", ErrNotCanonical, shown(v.entry), v.tar.err)
	}
}

func (v *verifier) verify() error {
	if err := v.start(); err != nil {
		return err
	}
	for {
		e, end, err := v.next()
		if err != nil {
			return err
		}
		if end {
			return v.end()
		}
		if err := v.content(e); err != nil {
			return err
		}
	}
}

// start checks the gzip header and opens the one member.
func (v *verifier) start() error {
	v.gzip = bufio.NewReaderSize(v.src, 64<<10)
	header, err := v.gzip.Peek(len(gzipHeader))
	if !strings.HasPrefix(gzipHeader, string(header)) {
		return fmt.Errorf("%w: it does not begin with the canonical gzip header", ErrNotCanonical)
	}
	if err == io.EOF {
		return fmt.Errorf("the archive breaks off in the gzip header: %w", io.ErrUnexpectedEOF)
	}
	if err != nil {
		return err
	}
	if _, err := v.gzip.Discard(len(gzipHeader)); err != nil {
		return err
	}
	v.tar = &plain{r: newMember(v.src, v.gzip, v.index), hash: sha256.New(), index: v.index}
	v.in = bufio.NewReaderSize(v.tar, 128<<10)
	return nil
}

// end checks that the archive ends with its second zero block, the gzip member
// with the tar, and the input with the member.
func (v *verifier) end() error {
	block, err := v.block(blockSize)
	if err != nil {
		return err
	}
	if !bytes.Equal(block, zeros[:blockSize]) {
		return fmt.Errorf("%w: there is one zero block after entry %q in place of two", ErrNotCanonical, shown(v.entry))
	}
	if _, err := v.in.ReadByte(); err == nil {
		return fmt.Errorf("%w: there is data after the end of the tar", ErrNotCanonical)
	} else if err != io.EOF {
		return err
	}
	if _, err := v.gzip.ReadByte(); err == nil {
		return fmt.Errorf("%w: there is data after the end of the gzip member", ErrNotCanonical)
	} else if err != io.EOF {
		return err
	}
	return nil
}

// block reads the next n bytes of the tar and returns them; they are appended
// to v.header.
func (v *verifier) block(n int) ([]byte, error) {
	have := len(v.header)
	v.header = append(v.header, make([]byte, n)...)
	if _, err := io.ReadFull(v.in, v.header[have:]); err != nil {
		return nil, v.short(err)
	}
	return v.header[have:], nil
}

// short makes of the end of the tar, at a place where it may not end, an error
// that says so.
func (v *verifier) short(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%w: the tar ends without its end blocks after entry %q: %w",
			ErrNotCanonical, shown(v.entry), io.ErrUnexpectedEOF)
	}
	return err
}

// next reads and checks the next header. End says that it was a zero block.
func (v *verifier) next() (e Entry, end bool, err error) {
	e, end, err = v.parse()
	if err != nil || end {
		return e, end, err
	}
	if e.Type == TypeDirectory {
		e.Name = strings.TrimSuffix(e.Name, "/")
	}
	if err := v.check(e); err != nil {
		return e, false, err
	}
	v.want = appendHeader(v.want[:0], e)
	if !bytes.Equal(v.header, v.want) {
		return e, false, notCanonical(e.Name, "its header is not in the canonical form")
	}
	if err := v.order.next(e); err != nil {
		return e, false, err
	}
	v.entry = e.Name
	return e, false, v.meter.add(e, len(v.want))
}

// parse reads the blocks of one header into v.header and makes sense of them.
func (v *verifier) parse() (e Entry, end bool, err error) {
	v.header = v.header[:0]
	block, err := v.block(blockSize)
	if err != nil {
		return e, false, err
	}
	if bytes.Equal(block, zeros[:blockSize]) {
		return e, true, nil
	}
	e, ok := parseBlock(block)
	if !ok {
		return e, false, notCanonical(e.Name, "its header has no valid mode or size (after entry %q)", shown(v.entry))
	}
	if e.Type != typePAX {
		return e, false, nil
	}
	if e.Size > maxRecordsSize {
		return e, false, notCanonical(e.Name, "the extended header after entry %q is larger than %d bytes", shown(v.entry), maxRecordsSize)
	}
	size := int(e.Size)
	records, err := v.block(size + int(padding(e.Size)))
	if err != nil {
		return e, false, err
	}
	text := string(records[:size])
	if block, err = v.block(blockSize); err != nil {
		return e, false, err
	}
	e, ok = parseBlock(block)
	if !ok || !parseRecords(text, &e) {
		return e, false, notCanonical(e.Name, "its extended header is not in the canonical form")
	}
	return e, false, nil
}

// check refuses what no canonical archive may hold.
func (v *verifier) check(e Entry) error {
	switch e.Type {
	case TypeFile, TypeDirectory, TypeSymlink:
	default:
		return refuse(e.Name, "is %s", kindOfFlag(byte(e.Type)))
	}
	if err := checkName(e.Name, v.limits); err != nil {
		return err
	}
	switch {
	case e.Type != TypeFile && e.Size != 0:
		return notCanonical(e.Name, "has content and is no regular file")
	case e.Type == TypeSymlink && e.Mode != 0o777:
		return notCanonical(e.Name, "the symbolic link has mode %04o", e.Mode)
	case e.Type == TypeSymlink:
		return checkLink(e.Name, e.Linkname, v.limits)
	case e.Linkname != "":
		return notCanonical(e.Name, "has a link target and is no symbolic link")
	}
	return nil
}

// content shows an entry to the visitor and reads over its content and padding.
func (v *verifier) content(e Entry) error {
	offset := v.tar.size - int64(v.in.Buffered())
	limited := &io.LimitedReader{R: v.in, N: e.Size}
	if v.visit != nil {
		body := io.Reader(limited)
		if v.index != nil {
			body = &hashingReader{limited, v.file}
		}
		if err := v.visit(e, body); err != nil {
			return failed(e.Name, "refused", err)
		}
	}
	if err := v.skip(limited.N); err != nil {
		return v.short(err)
	}
	if v.index != nil {
		v.index.Entry(e, offset, fileHash(e, v.file))
	}
	v.header = v.header[:0]
	pad, err := v.block(int(padding(e.Size)))
	if err != nil {
		return err
	}
	if !bytes.Equal(pad, zeros[:len(pad)]) {
		return notCanonical(e.Name, "its padding is not zero")
	}
	return nil
}

// skip reads over n bytes of a file's content, and hashes them if there is an index.
func (v *verifier) skip(n int64) error {
	for n > 0 {
		step := int(min(n, 1<<30))
		if v.index != nil {
			// At least one byte, and then what is there already.
			if _, err := v.in.Peek(1); err != nil {
				return err
			}
			step = int(min(n, int64(v.in.Buffered())))
			ahead, err := v.in.Peek(step)
			if err != nil {
				return err
			}
			v.file.Write(ahead)
		}
		discarded, err := v.in.Discard(step)
		n -= int64(discarded)
		if err != nil {
			return err
		}
	}
	return nil
}
