// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package extract writes the files of a canonical archive below a folder.
//
// What is written is checked entry by entry on the way, as docs/format.md has it, and nothing is written outside of the
// folder, whatever an archive says and whoever else writes there.
package extract

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"rukpak.io/apiserver/pkg/tarball"
)

// owner is what whoever fills a directory needs of it.
const owner = 0o700

// block is what a file system gives out at a time, and what an entry takes beside its content, in bytes.
const block = 4096

// Options say what is written.
type Options struct {
	// Limits bound the archive.
	Limits tarball.Limits
	// Mode chooses the permissions of a file or a directory. nil means ForOwner.
	Mode func(tarball.Entry) fs.FileMode
}

// ForOwner are the permissions of the archive, with those that whoever writes the files needs to read and to remove
// them. Nobody else may write.
func ForOwner(e tarball.Entry) fs.FileMode {
	if e.Type == tarball.TypeDirectory {
		return e.Mode&^0o022 | owner
	}
	return e.Mode&^0o022 | 0o400
}

// Exact are the permissions of the archive. They may keep whoever writes the files out of directories: Remove removes them all the same.
func Exact(e tarball.Entry) fs.FileMode { return e.Mode }

// ForEveryone are the permissions with which every user reads all files, and runs those that somebody may run.
func ForEveryone(e tarball.Entry) fs.FileMode {
	mode := ForOwner(e) | 0o444
	if e.Type == tarball.TypeDirectory || mode&0o111 != 0 {
		mode |= 0o111
	}
	return mode
}

// Summary describes what was written.
type Summary struct {
	tarball.Summary
	// Disk is about what it takes on a disk, in bytes.
	Disk int64
	// Entries are all of its entries, directories among them.
	Entries int64
}

// Tree writes what r, a canonical archive, holds to dir, an empty folder. What was written before an error stays. An error of
// the folder names the path; all others are those of tarball.Verify, about the archive or of reading it.
func Tree(ctx context.Context, r io.Reader, dir string, opts Options) (Summary, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Summary{}, err
	}
	// Nothing is written through the folder itself.
	defer root.Close()
	t := &tree{root: root, mode: opts.Mode}
	if t.mode == nil {
		t.mode = ForOwner
	}
	summary, err := tarball.Verify(ctx, r, opts.Limits, t.visit)
	if t.err != nil {
		// That of the disk, which is no fault of the entry.
		err = t.err
	}
	if err == nil {
		err = t.close()
	}
	return Summary{Summary: summary, Disk: t.disk, Entries: t.entries}, err
}

// tree is a folder that is being filled.
type tree struct {
	root *os.Root
	mode func(tarball.Entry) fs.FileMode
	disk int64
	// entries are those that were written.
	entries int64
	// closed are the directories whose permissions keep their owner out, and which get them at the end.
	closed []directory
	err    error // of the disk
}

type directory struct {
	name string
	mode fs.FileMode
}

// close gives the last directories their permissions, the deepest first: they may take away the right to enter.
func (t *tree) close() error {
	for _, d := range slices.Backward(t.closed) {
		if err := t.root.Chmod(d.name, d.mode); err != nil {
			return failed(d.name, err)
		}
	}
	return nil
}

func failed(name string, err error) error { return fmt.Errorf("write %q: %w", name, err) }

func (t *tree) visit(e tarball.Entry, content io.Reader) error {
	source := &reader{Reader: content}
	err := t.write(e, source)
	if err != nil && source.err == nil {
		t.err = failed(e.Name, err)
	}
	t.entries++
	t.disk += block + (e.Size+block-1)/block*block
	return err
}

func (t *tree) write(e tarball.Entry, content io.Reader) error {
	switch e.Type {
	case tarball.TypeDirectory:
		if err := t.root.Mkdir(e.Name, owner); err != nil {
			return err
		}
		mode := t.mode(e)
		if mode&owner != owner {
			t.closed = append(t.closed, directory{e.Name, mode})
		}
		// The umask had its say above.
		return t.root.Chmod(e.Name, mode|owner)
	case tarball.TypeSymlink:
		return t.root.Symlink(e.Linkname, e.Name)
	default:
		return t.file(e, content)
	}
}

func (t *tree) file(e tarball.Entry, content io.Reader) (err error) {
	f, err := t.root.OpenFile(e.Name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.Copy(f, content); err != nil {
		return err
	}
	return f.Chmod(t.mode(e))
}

// reader remembers the error with which reading ended.
type reader struct {
	io.Reader
	err error
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}
