// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"strings"

	"github.com/klauspost/compress/gzip"
)

// Canonicalize reads a tar or tar.gz from r up to its end and writes the same
// tree to w as a canonical archive. The entries may come in any order and in
// any format that archive/tar reads; hard links become copies, sparse files
// whole ones, and directories that have no entry get mode 0755. Whiteouts of
// image layers mean nothing here.
//
// Nothing is written before the whole input has been read and found good, the
// verdict of a visitor excepted. An entry that no archive may hold gives an
// *EntryError, an archive beyond the limits a *LimitError, an input that is no
// tar or is damaged ErrNotTar, one that breaks off io.ErrUnexpectedEOF. What w
// holds after an error is no archive. Until Canonicalize returns, another
// goroutine writes to w.
//
// File contents go through a scratch file; an index of the entries is in
// memory, at most about 16 MiB and 512 bytes for each file that the limits allow.
func Canonicalize(ctx context.Context, w io.Writer, r io.Reader, opts Options) (_ Summary, err error) {
	path, err := cleanRoot(opts.Path)
	if err != nil {
		return Summary{}, err
	}
	limits := opts.Limits.effective()
	spool, err := newSpool(opts.Scratch)
	if err != nil {
		return Summary{}, err
	}
	defer func() {
		if closeErr := spool.close(); err == nil && closeErr != nil {
			err = fmt.Errorf("close scratch file: %w", closeErr)
		}
	}()
	c := &canonicalizer{path: path, limits: limits, index: newIndex(limits), spool: spool, early: newMeter(limits)}
	if err := c.read(ctx, r); err != nil {
		return Summary{}, err
	}
	tree, err := c.index.subtree(path)
	if err != nil {
		return Summary{}, err
	}
	if err := c.judge(tree); err != nil {
		return Summary{}, err
	}
	return c.write(ctx, w, tree, opts)
}

type canonicalizer struct {
	path   string
	limits Limits
	index  *index
	spool  *spool
	// early counts what is known while reading. Hard links have no size then
	// and implied directories are left out, so it never refuses too much.
	early meter
	entry string // the entry that was read last
}

// judge resolves the hard links of the tree and checks all that takes the whole
// tree to know.
func (c *canonicalizer) judge(tree *node) error {
	meter := newMeter(c.limits)
	var header []byte
	return c.index.walk(tree, "", func(name string, n *node) error {
		if n.kind == kindHardLink {
			if err := c.index.resolve(name, n); err != nil {
				return err
			}
		}
		if n.kind == TypeSymlink {
			if err := checkLink(name, n.link, c.limits); err != nil {
				return err
			}
		}
		e := n.entry(name)
		header = appendHeader(header[:0], e)
		return meter.add(e, len(header))
	})
}

func (c *canonicalizer) write(ctx context.Context, w io.Writer, tree *node, opts Options) (Summary, error) {
	out := newArchive(ctx, w, c.limits, opts)
	defer out.abort()
	err := c.index.walk(tree, "", func(name string, n *node) error {
		e := n.entry(name)
		if opts.Visit != nil {
			if err := opts.Visit(e, c.spool.open(n.offset, n.size)); err != nil {
				return failed(name, "refused", err)
			}
		}
		return out.add(e, c.spool.open(n.offset, n.size))
	})
	if err != nil {
		return Summary{}, err
	}
	return out.finish()
}

// read puts everything that r holds into the index and the spool.
func (c *canonicalizer) read(ctx context.Context, r io.Reader) error {
	in, err := openForeign(ctx, r, c.limits)
	if err != nil {
		return err
	}
	archive := tar.NewReader(in)
	for {
		in.mark()
		header, err := archive.Next()
		if err == io.EOF {
			break
		}
		// That a name leads outside is judged below, and with more words.
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return c.damaged(in, err)
		}
		if err := c.add(header, archive, in); err != nil {
			return at(c.entry, err)
		}
	}
	if err := in.finish(); err != nil {
		return c.damaged(in, err)
	}
	return c.spool.flush()
}

// damaged says what an error of the tar reader means.
func (c *canonicalizer) damaged(in *foreign, err error) error {
	if in.src.err != nil {
		return at(c.entry, in.src.err)
	}
	if _, ok := errors.AsType[*LimitError](err); ok {
		return at(c.entry, err)
	}
	where := fmt.Sprintf("after entry %q", shown(c.entry))
	if c.entry == "" {
		where = "at its first entry"
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		if c.entry == "" && in.size < blockSize {
			return fmt.Errorf("%w: it has %d bytes only: %w", ErrNotTar, in.size, io.ErrUnexpectedEOF)
		}
		return fmt.Errorf("the archive breaks off %s: %w", where, io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("%w, or damaged, %s: %w", ErrNotTar, where, err)
}

// add takes one entry of the input.
func (c *canonicalizer) add(header *tar.Header, content io.Reader, in *foreign) error {
	if header.Typeflag == tar.TypeXGlobalHeader {
		return checkGlobal(header)
	}
	c.entry = header.Name
	name, err := cleanName(header.Name)
	if err != nil {
		return err
	}
	if name == "" {
		if header.Typeflag != tar.TypeDir {
			return refuse(header.Name, "the name is that of the root, which is a directory")
		}
		return nil
	}
	n, err := newNode(header)
	if err != nil {
		return err
	}
	if err := c.check(name, header, n); err != nil {
		return err
	}
	if err := c.index.insert(name, n); err != nil {
		return err
	}
	switch n.kind {
	case TypeFile:
		return c.keep(name, n, content, in)
	case kindOther:
		// Some have content; where it ends matters to in.mark.
		if _, err := io.Copy(io.Discard, content); err != nil {
			return c.damaged(in, err)
		}
	}
	return nil
}

// keep puts the content of a regular file into the spool.
func (c *canonicalizer) keep(name string, n *node, content io.Reader, in *foreign) error {
	if n.size > spoolLimit(c.limits.Bytes)-c.spool.size {
		return exceeds(LimitBytes, spoolLimit(c.limits.Bytes), name)
	}
	offset, size, err := c.spool.add(content)
	if errors.Is(err, errScratch) {
		return err
	}
	if err != nil {
		return c.damaged(in, err)
	}
	n.offset = offset
	if size != n.size {
		return refuse(name, "has %d bytes of content and a header that says %d", size, n.size)
	}
	return nil
}

// check refuses what can be refused before the content is read.
func (c *canonicalizer) check(name string, header *tar.Header, n *node) error {
	rel, inside := under(name, c.path)
	if !inside || rel == "" {
		return checkLength(name, c.limits)
	}
	if err := checkLength(rel, c.limits); err != nil {
		return err
	}
	switch n.kind {
	case kindOther:
		return refuse(header.Name, "is %s", kindOfFlag(header.Typeflag))
	case TypeSymlink:
		if err := checkLink(rel, n.link, c.limits); err != nil {
			return err
		}
	}
	e := n.entry(rel)
	if n.kind == kindHardLink {
		e = Entry{Name: rel, Type: TypeFile}
	}
	return c.early.add(e, len(appendHeader(nil, e)))
}

// newNode makes the node of a header, its content aside.
func newNode(header *tar.Header) (*node, error) {
	n := &node{mode: fs.FileMode(header.Mode) & fs.ModePerm}
	switch header.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		n.kind, n.size = TypeFile, header.Size
	case tar.TypeDir:
		n.kind = TypeDirectory
		return n, nil
	case tar.TypeSymlink:
		n.kind, n.link = TypeSymlink, header.Linkname
	case tar.TypeLink:
		// An image's root is "/", so an absolute target is one of the archive.
		link, err := cleanRoot(header.Linkname)
		if err != nil || link == "" {
			return nil, refuse(header.Name, "is a hard link to %q, which cannot be in the archive", shown(header.Linkname))
		}
		n.kind, n.link = kindHardLink, link
	default:
		n.kind = kindOther
	}
	if strings.HasSuffix(header.Name, "/") {
		return nil, refuse(header.Name, "has the name of a directory and is none")
	}
	return n, nil
}

// checkGlobal refuses global pax records that say more about the entries than
// times and owners. Archivers leave a comment there; archive/tar applies none.
func checkGlobal(header *tar.Header) error {
	for key := range header.PAXRecords {
		switch key {
		case "comment", "atime", "ctime", "mtime", "uid", "gid", "uname", "gname":
		default:
			return refuse(header.Name, "is a global header with the unsupported record %q", shown(key))
		}
	}
	return nil
}

// openForeign begins to read an archive of unknown make.
func openForeign(ctx context.Context, r io.Reader, limits Limits) (*foreign, error) {
	f := &foreign{src: &source{ctx: ctx, r: r, max: math.MaxInt64}, limits: limits}
	buffered := bufio.NewReaderSize(f.src, 128<<10)
	magic, err := buffered.Peek(magicSize)
	switch {
	case f.src.err != nil:
		return nil, f.src.err
	case err == io.EOF && len(magic) == 0:
		return nil, fmt.Errorf("%w: it is empty", ErrNotTar)
	case !strings.HasPrefix(string(magic), gzipHeader[:2]):
		f.r = buffered
		return f, CheckFormat(magic)
	}
	f.src.max, f.compressed = limits.CompressedBytes, true
	if f.r, err = gzip.NewReader(buffered); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if f.src.err != nil {
			err = f.src.err
		}
		return nil, fmt.Errorf("%w: gzip: %w", ErrNotTar, err)
	}
	return f, nil
}
