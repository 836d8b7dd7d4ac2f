// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package toc

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync"

	"rukpak.io/apiserver/pkg/tarball"
)

// Builder makes the index of an archive that goes by. Its parts go to a file without a name as they are full, so
// memory does not depend on the archive, but for 8 bytes for each 32 MiB of the tar. A failure shows at Finish.
type Builder struct {
	// mu guards what follows it: entries and stripes come from different goroutines.
	mu   sync.Mutex
	file *os.File
	w    *bufio.Writer
	end  int64 // of what was written, headerSize before it included
	err  error

	tree    tree
	stripes stripes
}

var _ tarball.Indexer = &Builder{}

// NewBuilder begins an index. Scratch is a folder for its file; empty means os.TempDir(). Close must follow.
func NewBuilder(scratch string) (*Builder, error) {
	file, err := os.CreateTemp(scratch, "toc-")
	if err != nil {
		return nil, fmt.Errorf("make index: %w", err)
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("make index: %w", err), file.Close())
	}
	b := &Builder{file: file, w: bufio.NewWriterSize(file, 32<<10), end: headerSize}
	b.tree.write, b.stripes.write = b.part, b.part
	return b, nil
}

// Close ends the use of the builder, and of what Finish returned.
func (b *Builder) Close() error { return b.file.Close() }

// part writes a part, completed by its checksum, and returns where it is.
func (b *Builder) part(p []byte) pointer {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := pointer{b.end, int64(len(p)) + checksumSize}
	b.end += at.length
	p = binary.LittleEndian.AppendUint32(p, crc32.Checksum(p, castagnoli))
	if _, err := b.w.Write(p); err != nil && b.err == nil {
		b.err = err
	}
	return at
}

// Entry takes the next entry.
func (b *Builder) Entry(e tarball.Entry, offset int64, digest [sha256.Size]byte) {
	b.tree.add(&Entry{Entry: e, Offset: offset, Digest: digest})
}

// Tar takes the next bytes of the tar.
func (b *Builder) Tar(p []byte) { b.stripes.add(p) }

// Checkpoint takes a place where reading can begin.
func (b *Builder) Checkpoint(c tarball.Checkpoint) { b.stripes.checkpoint(c) }

// Finish ends the index of the archive that s describes, and returns its bytes and how many they are. They can be read
// until Close.
func (b *Builder) Finish(s tarball.Summary) (io.Reader, int64, error) {
	h := headerOf(s)
	h.entries = b.tree.entries
	h.root, h.height = b.tree.finish()
	h.stripes = b.stripes.finish()
	if b.err == nil {
		b.err = b.w.Flush()
	}
	if b.err != nil {
		return nil, 0, fmt.Errorf("make index: %w", b.err)
	}
	if b.stripes.size != s.UncompressedSize {
		return nil, 0, fmt.Errorf("make index: %d bytes of the tar in place of %d", b.stripes.size, s.UncompressedSize)
	}
	first, err := h.encode()
	if err != nil {
		return nil, 0, fmt.Errorf("make index: %w", err)
	}
	return io.MultiReader(bytes.NewReader(first), io.NewSectionReader(b.file, 0, b.end-headerSize)), b.end, nil
}

// tree writes leaves, and nodes above them.
type tree struct {
	write   func([]byte) pointer
	entries int64
	leaf    []byte
	first   string // name in the leaf
	last    string
	levels  []level
}

// level is the node that is being filled at one height.
type level struct {
	node     []byte
	first    string
	children int
}

func (t *tree) add(e *Entry) {
	t.entries++
	if len(t.leaf) == 0 {
		t.leaf, t.first, t.last = append(t.leaf, kindLeaf), e.Name, ""
	}
	t.leaf = appendEntry(t.leaf, e, t.last)
	t.last = e.Name
	if len(t.leaf) >= fullPart {
		t.endLeaf()
	}
}

func (t *tree) endLeaf() {
	t.child(0, t.first, t.write(t.leaf))
	t.leaf = t.leaf[:0]
}

// child adds a part to the node at a height.
func (t *tree) child(height int, first string, at pointer) {
	if height == len(t.levels) {
		t.levels = append(t.levels, level{})
	}
	l := &t.levels[height]
	if l.children == 0 {
		l.node, l.first = append(l.node[:0], kindNode), first
	}
	l.children++
	l.node = appendText(l.node, first)
	l.node = binary.AppendUvarint(l.node, uint64(at.offset))
	l.node = binary.AppendUvarint(l.node, uint64(at.length))
	if len(l.node) >= fullPart && l.children > 1 {
		t.endNode(height)
	}
}

func (t *tree) endNode(height int) {
	l := &t.levels[height]
	l.children = 0
	first, at := l.first, t.write(l.node)
	t.child(height+1, first, at)
}

// finish writes what is not written and returns the root, and the height of the nodes below and with it.
func (t *tree) finish() (pointer, int) {
	if t.entries == 0 {
		return pointer{}, 0
	}
	if len(t.leaf) > 0 {
		t.endLeaf()
	}
	for height := 0; ; height++ {
		l := &t.levels[height]
		switch {
		case height == len(t.levels)-1 && l.children == 1:
			return only(l.node), height
		case l.children > 0:
			t.endNode(height)
		}
	}
}

// only returns the one child of a node.
func only(node []byte) pointer {
	d := decoder{b: node[1:]}
	d.text()
	return pointer{d.number(), d.number()}
}
