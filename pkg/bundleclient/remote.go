// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundleclient

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// RemoteFS is the files of one content of a bundle, which stay on the server: what is opened is read from there, and nothing else.
// Each request names the content by its digest, so that no two files are ever of different ones; once the server has the content
// no more, what is read fails with an error that is apierrors.IsNotFound and not fs.ErrNotExist. It may be used by many goroutines
// at the same time.
//
// A file is a request, and goes on where it breaks off. Read whole, it ends with io.EOF only if it has its digest. It is an
// io.ReaderAt and an io.Seeker, too, by a request for each ReadAt, and for the first Read at another place. What files are
// is in the list of their directory, which Stat, Lstat, ReadLink and ReadDir read as a whole, and of which some are kept; Open and
// ReadFile read none. Symbolic links are followed, and do not lead out of it. Sys of a file's info is its *listing.Entry, with its digest.
type RemoteFS struct {
	// Digest is that of the content.
	Digest string

	ctx             context.Context
	bundles         typed.BundlesGetter
	namespace, name string
	patience        time.Duration
	lists           lists
}

var _ interface {
	fs.ReadFileFS
	fs.ReadDirFS
	fs.StatFS
	fs.ReadLinkFS
} = (*RemoteFS)(nil)

// OpenRemote returns the files of a bundle's content without fetching them, for who needs few of many. Ctx is that of
// all that is read of them. There is nothing to close. Errors are those of Open.
func (c *Client) OpenRemote(ctx context.Context, namespace, name string, opts OpenOptions) (*RemoteFS, error) {
	digest, err := c.current(ctx, namespace, name, opts.Digest)
	if err != nil {
		return nil, err
	}
	return &RemoteFS{Digest: digest, ctx: ctx, bundles: c.bundles, namespace: namespace, name: name, patience: c.opts.Patience}, nil
}

// Open opens a file or a directory. A file is an io.ReaderAt and an io.Seeker.
func (r *RemoteFS) Open(name string) (fs.File, error) {
	if name == "." {
		return &remoteDir{fs: r, name: name}, nil
	}
	content, err := r.get("open", name, 0, 0)
	if errors.Is(err, typed.ErrIsDirectory) {
		return &remoteDir{fs: r, name: name}, nil
	}
	if err != nil {
		return nil, err
	}
	return &remoteFile{fs: r, name: name, size: content.Size, body: content}, nil
}

// ReadFile reads a file whole, in one request, into memory.
func (r *RemoteFS) ReadFile(name string) ([]byte, error) {
	content, err := r.get("read", name, 0, 0)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(content)
	if err := errors.Join(err, content.Close()); err != nil {
		return nil, failed("read", name, err)
	}
	return raw, nil
}

// ReadDir lists a directory.
func (r *RemoteFS) ReadDir(name string) ([]fs.DirEntry, error) {
	if !fs.ValidPath(name) {
		return nil, failed("readdir", name, fs.ErrInvalid)
	}
	all, err := r.list(name)
	if err != nil {
		return nil, failed("readdir", name, err)
	}
	entries := make([]fs.DirEntry, len(all))
	for i, e := range all {
		entries[i] = fs.FileInfoToDirEntry(e)
	}
	return entries, nil
}

// Stat describes what is at a path, or what a symbolic link there leads to.
func (r *RemoteFS) Stat(name string) (fs.FileInfo, error) {
	found, err := r.lstat("stat", name)
	if err == nil && found.Mode()&fs.ModeSymlink != 0 {
		found, err = r.follow(name)
	}
	if err != nil {
		return nil, failed("stat", name, err)
	}
	named := *found
	named.name = path.Base(name)
	return &named, nil
}

// Lstat describes what is at a path, a symbolic link as such.
func (r *RemoteFS) Lstat(name string) (fs.FileInfo, error) {
	found, err := r.lstat("lstat", name)
	if err != nil {
		return nil, err
	}
	return found, nil
}

// ReadLink returns where a symbolic link leads, relative to the directory that it is in.
func (r *RemoteFS) ReadLink(name string) (string, error) {
	found, err := r.lstat("readlink", name)
	if err == nil && found.Mode()&fs.ModeSymlink == 0 {
		err = failed("readlink", name, fs.ErrInvalid)
	}
	if err != nil {
		return "", err
	}
	return found.entry.Target(), nil
}

func (r *RemoteFS) lstat(op, name string) (*remoteInfo, error) {
	if !fs.ValidPath(name) {
		return nil, failed(op, name, fs.ErrInvalid)
	}
	found, err := r.find(name)
	if err != nil {
		return nil, failed(op, name, err)
	}
	return found, nil
}

// get asks for a part of a file; a length of 0 is to its end.
func (r *RemoteFS) get(op, name string, offset, length int64) (*typed.Content, error) {
	if !fs.ValidPath(name) {
		return nil, failed(op, name, fs.ErrInvalid)
	}
	if name == "." {
		return nil, failed(op, name, typed.ErrIsDirectory)
	}
	content, err := r.bundles.Bundles(r.namespace).GetFile(r.ctx, r.name, name, typed.GetFileOptions{
		Digest: r.Digest, Offset: offset, Length: length, Patience: r.patience,
	})
	if err != nil {
		return nil, failed(op, name, err)
	}
	return content, nil
}

// failed is an error as io/fs has it. One of the API that means the same as one of io/fs is both.
func failed(op, name string, err error) error {
	var done *fs.PathError
	switch {
	case err == nil || errors.As(err, &done):
		return err
	case apierrors.HasStatusCause(err, v1alpha1.CauseFileNotFound):
		err = &alias{err, fs.ErrNotExist}
	case apierrors.IsForbidden(err):
		err = &alias{err, fs.ErrPermission}
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// alias is an error that is another one, too.
type alias struct {
	error
	is error
}

func (a *alias) Unwrap() []error { return []error{a.error, a.is} }
