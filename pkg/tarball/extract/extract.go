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
	"path/filepath"
	"slices"
	"strings"

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
// the folder names the path; all others are those of tarball.Verify, about the archive or of reading it. What would be another
// path on Windows is refused there with a *tarball.EntryError.
func Tree(ctx context.Context, r io.Reader, dir string, opts Options) (Summary, error) {
	return fill(ctx, r, dir, opts, filepath.Separator)
}

// fill is Tree where paths have a separator.
func fill(ctx context.Context, r io.Reader, dir string, opts Options, separator rune) (Summary, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Summary{}, err
	}
	// Nothing is written through the folder itself.
	defer root.Close()
	t := &tree{root: root, mode: opts.Mode, separator: separator}
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
	root      *os.Root
	mode      func(tarball.Entry) fs.FileMode
	separator rune
	disk      int64
	// entries are those that were written.
	entries int64
	// closed are the directories whose permissions keep their owner out, and which get them at the end.
	closed []directory
	// links are symbolic links that are made at the end, with targets as this system spells them.
	links []tarball.Entry
	err   error // of the disk
}

type directory struct {
	name string
	mode fs.FileMode
}

// close makes what is made last, and gives the last directories their permissions, the deepest first: they may take away the
// right to enter.
func (t *tree) close() error {
	for _, e := range t.links {
		if err := t.root.Symlink(e.Linkname, e.Name); err != nil {
			return failed(e.Name, err)
		}
	}
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

func (t *tree) write(e tarball.Entry, content io.Reader) (err error) {
	if e.Linkname, err = native(e, t.separator); err != nil {
		return err
	}
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
		if t.separator != '/' {
			// Windows has links to files and links to directories, and what is there when a link is made decides.
			t.links = append(t.links, e)
			return nil
		}
		return t.root.Symlink(e.Linkname, e.Name)
	default:
		return t.file(e, content)
	}
}

// native is the target of a link as it is spelled where paths have a separator. On Windows, what is one name in an archive and
// means a path or a drive there is refused.
func native(e tarball.Entry, separator rune) (string, error) {
	if separator == '/' {
		return e.Linkname, nil
	}
	const foreign = `\:`
	switch {
	case strings.ContainsAny(e.Name, foreign):
		return "", &tarball.EntryError{Entry: e.Name, Reason: `the name has a \ or a :, which is no part of a name on this system`}
	case strings.ContainsAny(e.Linkname, foreign):
		return "", &tarball.EntryError{Entry: e.Name, Reason: fmt.Sprintf(`the target %q of the symbolic link has a \ or a :, which is no part of a name on this system`, e.Linkname)}
	}
	return strings.ReplaceAll(e.Linkname, "/", string(separator)), nil
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
