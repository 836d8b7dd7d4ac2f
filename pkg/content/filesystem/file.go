// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package filesystem

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/diskfull"
	"rukpak.io/apiserver/pkg/flock"
)

// File is a range of a blob. Read, Seek, ReadAt and Size are relative to the range.
// Every read is one system call on the caller's buffer; copy with a big one.
type File struct {
	*io.SectionReader
	file *os.File
}

var (
	_ io.ReadSeekCloser = (*File)(nil)
	_ io.ReaderAt       = (*File)(nil)
)

// Close ends the reading.
func (f *File) Close() error { return f.file.Close() }

// section is the range of f that content.Store's Open describes.
func section(f *os.File, offset, length int64) (*File, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	rest := info.Size() - offset
	if offset < 0 || rest < 0 {
		return nil, fmt.Errorf("%w: offset %d of %d bytes", content.ErrOutOfRange, offset, info.Size())
	}
	if length < 0 || length > rest {
		length = rest
	}
	return &File{SectionReader: io.NewSectionReader(f, offset, length), file: f}, nil
}

// makeFolder makes a folder and its parents, and syncs each parent in which it made one.
func makeFolder(path string) error {
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeFolder(filepath.Dir(path)); err != nil {
			return err
		}
		err = os.Mkdir(path, 0o700)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// syncFolder brings the entries of a folder to the disk.
func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// lockFile takes the lock without waiting. Closing the file, or the end of the
// process, however it comes, gives it back.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = flock.Try(f, flock.Exclusive)
	if errors.Is(err, flock.ErrBusy) {
		err = ErrInUse
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// spaceError marks the errors of a full disk or quota.
func spaceError(err error) error {
	if diskfull.Is(err) {
		return fmt.Errorf("%w: %w", content.ErrNoSpace, err)
	}
	return err
}

// notFound replaces the error of a file that is not there, whose text would show a path.
func notFound(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return content.ErrNotFound
	}
	return err
}
