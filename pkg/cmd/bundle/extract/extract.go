// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package extract makes a folder out of a canonical archive. Nothing outside the folder is touched, whatever the archive
// holds: each path is opened below it with os.Root, and the archive is checked while it is read.
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

	"rukpak.io/apiserver/pkg/tarball"
)

// Archive writes the files of a canonical archive (docs/format.md) into dir, a folder that is there and empty, and
// returns what the archive is. An error that is a *tarball.EntryError or tarball.ErrNotCanonical is about the archive; another
// about the folder. What was written by then stays.
func Archive(ctx context.Context, archive io.Reader, dir string) (_ tarball.Summary, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return tarball.Summary{}, fmt.Errorf("open the folder: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	x := &extraction{root: root}
	summary, err := tarball.Verify(ctx, archive, tarball.Limits{}, x.visit)
	if x.err != nil {
		return tarball.Summary{}, x.err
	}
	if err != nil {
		return tarball.Summary{}, err
	}
	// The deepest first: they may take away the right to enter.
	for _, d := range slices.Backward(x.closed) {
		if err := root.Chmod(d.name, d.mode); err != nil {
			return tarball.Summary{}, failed(d.name, err)
		}
	}
	return summary, nil
}

// owner is what we need of a directory while we write into it.
const owner = 0o700

type extraction struct {
	root *os.Root
	// closed are the directories whose mode keeps their owner out, and which get it at the end.
	closed []closed
	err    error // of the folder, in its own words
}

type closed struct {
	name string
	mode fs.FileMode
}

func (x *extraction) visit(e tarball.Entry, content io.Reader) error {
	err := x.write(e, content)
	if source, ok := errors.AsType[*sourceError](err); ok {
		return source.error
	}
	if err != nil {
		x.err = failed(e.Name, err)
	}
	return err
}

// sourceError is an error of the archive, which Verify tells of in its own words.
type sourceError struct{ error }

// reader remembers its error.
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

func failed(name string, err error) error { return fmt.Errorf("write %q: %w", name, err) }

func (x *extraction) write(e tarball.Entry, content io.Reader) error {
	switch e.Type {
	case tarball.TypeDirectory:
		if e.Mode&owner != owner {
			x.closed = append(x.closed, closed{e.Name, e.Mode})
		}
		if err := x.root.Mkdir(e.Name, owner); err != nil {
			return err
		}
		return x.root.Chmod(e.Name, e.Mode|owner)
	case tarball.TypeSymlink:
		return x.root.Symlink(e.Linkname, e.Name)
	default:
		return x.writeFile(e, content)
	}
}

func (x *extraction) writeFile(e tarball.Entry, content io.Reader) (err error) {
	file, err := x.root.OpenFile(e.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	source := &reader{Reader: content}
	n, err := io.Copy(file, source)
	if source.err != nil {
		return &sourceError{source.err}
	}
	if err != nil {
		return err
	}
	if n < e.Size {
		return io.ErrUnexpectedEOF
	}
	return file.Chmod(e.Mode)
}

// Remove removes a folder with all that is in it, directories that keep their owner out included.
func Remove(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	if err := unlock(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func unlock(dir string) error {
	if err := os.Chmod(dir, owner); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := unlock(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
