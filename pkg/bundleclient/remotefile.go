// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundleclient

import (
	"errors"
	"io"
	"io/fs"
	"sync/atomic"

	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// remoteFile is an open file. Only ReadAt may be used by several goroutines.
type remoteFile struct {
	fs   *RemoteFS
	name string
	size int64

	at     int64          // where the next Read is
	body   *typed.Content // nil where there is none
	bodyAt int64          // where body is
	closed atomic.Bool
}

var _ interface {
	io.ReaderAt
	io.Seeker
} = (*remoteFile)(nil)

// Stat describes the file.
func (f *remoteFile) Stat() (fs.FileInfo, error) { return f.fs.Stat(f.name) }

// Read reads on, by another request where Seek has led elsewhere.
func (f *remoteFile) Read(p []byte) (int, error) {
	switch {
	case f.closed.Load():
		return 0, failed("read", f.name, fs.ErrClosed)
	case len(p) == 0:
		return 0, nil
	case f.at >= f.size && (f.body == nil || f.bodyAt != f.at):
		return 0, io.EOF
	}
	if f.body != nil && f.bodyAt != f.at {
		// It was only read.
		_ = f.body.Close()
		f.body = nil
	}
	if f.body == nil {
		body, err := f.fs.get("read", f.name, f.at, 0)
		if err != nil {
			return 0, err
		}
		f.body, f.bodyAt = body, f.at
	}
	n, err := f.body.Read(p)
	f.at += int64(n)
	f.bodyAt = f.at
	if err != nil && err != io.EOF {
		err = failed("read", f.name, err)
	}
	return n, err
}

// ReadAt reads a part, by a request of its own.
func (f *remoteFile) ReadAt(p []byte, offset int64) (int, error) {
	switch {
	case f.closed.Load():
		return 0, failed("read", f.name, fs.ErrClosed)
	case offset < 0:
		return 0, failed("read", f.name, fs.ErrInvalid)
	case len(p) == 0:
		return 0, nil
	case offset >= f.size:
		return 0, io.EOF
	}
	want := min(int64(len(p)), f.size-offset)
	content, err := f.fs.get("read", f.name, offset, want)
	if err != nil {
		return 0, err
	}
	n, err := io.ReadFull(content, p[:want])
	err = failed("read", f.name, errors.Join(err, content.Close()))
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}

// Seek sets where the next Read is. It asks nothing of the server.
func (f *remoteFile) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += f.at
	case io.SeekEnd:
		offset += f.size
	default:
		offset = -1
	}
	switch {
	case f.closed.Load():
		return 0, failed("seek", f.name, fs.ErrClosed)
	case offset < 0:
		return 0, failed("seek", f.name, fs.ErrInvalid)
	}
	f.at = offset
	return offset, nil
}

// Close ends the reading.
func (f *remoteFile) Close() error {
	if f.closed.Swap(true) {
		return failed("close", f.name, fs.ErrClosed)
	}
	if f.body == nil {
		return nil
	}
	return failed("close", f.name, f.body.Close())
}

// remoteDir is an open directory.
type remoteDir struct {
	fs     *RemoteFS
	name   string
	rest   []fs.DirEntry // what ReadDir has not returned yet
	listed bool
	closed bool
}

// Stat describes the directory.
func (d *remoteDir) Stat() (fs.FileInfo, error) { return d.fs.Stat(d.name) }

// Read fails: a directory has no bytes.
func (d *remoteDir) Read([]byte) (int, error) {
	return 0, failed("read", d.name, typed.ErrIsDirectory)
}

// ReadDir lists the next n entries, or all that are left.
func (d *remoteDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if d.closed {
		return nil, failed("readdir", d.name, fs.ErrClosed)
	}
	if !d.listed {
		all, err := d.fs.ReadDir(d.name)
		if err != nil {
			return nil, err
		}
		d.rest, d.listed = all, true
	}
	if n > 0 && len(d.rest) == 0 {
		return nil, io.EOF
	}
	if n <= 0 || n > len(d.rest) {
		n = len(d.rest)
	}
	next := d.rest[:n:n]
	d.rest = d.rest[n:]
	return next, nil
}

// Close ends the listing.
func (d *remoteDir) Close() error {
	if d.closed {
		return failed("close", d.name, fs.ErrClosed)
	}
	d.closed = true
	return nil
}
