// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package filesystem keeps content in a folder of a local disk.
//
//	ROOT/lock                    held (flock) by the process that uses the folder
//	ROOT/mark                    the mark of the store
//	ROOT/tmp/*                   what is being written
//	ROOT/blobs/sha256/ab/abcd…   blobs; the folder is the first two digits
//	ROOT/index/sha256/ab/abcd…   their indexes
//
// Folders have mode 0700, files 0600. A blob is written to tmp, synced, and
// renamed to its name, and then both folders are synced; so after a crash, of the
// process or of the machine, a blob is whole or absent, and what stands in tmp is
// debris that the next Open removes. The fan-out folders are all made by Open, so
// that no writer depends on a folder whose own entry is not on the disk yet. An
// index is renamed to its name as well, and one whose blob is gone is removed by the
// next Open.
//
// A part of the disk is left free: whatever else lives there, such as the etcd that
// says whose the content is, cannot go on without any.
package filesystem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/failpoint"
)

// ErrInUse is the error of Open for a folder that another store has open.
var ErrInUse = errors.New("content folder is in use by another process")

// Store is a content.Store in a folder.
type Store struct {
	root, tmp, blobs, indexes string
	lock                      *os.File
}

var _ content.Store = (*Store)(nil)

// Open makes the folder if it is not there, takes it for this process, removes
// what an earlier process left unfinished, and returns the store. Close gives the
// folder back. ErrInUse if somebody has it.
func Open(root string) (*Store, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("content folder: %w", err)
	}
	s := &Store{
		root:    root,
		tmp:     filepath.Join(root, "tmp"),
		blobs:   filepath.Join(root, "blobs", content.Algorithm),
		indexes: filepath.Join(root, "index", content.Algorithm),
	}
	if err := makeFolder(root); err != nil {
		return nil, fmt.Errorf("content folder %s: %w", root, spaceError(err))
	}
	if s.lock, err = lockFile(filepath.Join(root, "lock")); err != nil {
		return nil, fmt.Errorf("content folder %s: %w", root, spaceError(err))
	}
	if err := s.prepare(); err != nil {
		return nil, errors.Join(fmt.Errorf("content folder %s: %w", root, spaceError(err)), s.Close())
	}
	return s, nil
}

// Close gives the folder back to other processes. Readers that are open stay usable.
func (s *Store) Close() error {
	return s.lock.Close()
}

// prepare makes the folders and empties tmp.
func (s *Store) prepare() error {
	if err := makeFolder(s.tmp); err != nil {
		return err
	}
	left, err := os.ReadDir(s.tmp)
	if err != nil {
		return err
	}
	for _, entry := range left {
		if err := os.RemoveAll(filepath.Join(s.tmp, entry.Name())); err != nil {
			return err
		}
	}
	if err := errors.Join(makeFanOut(s.blobs), makeFanOut(s.indexes)); err != nil {
		return err
	}
	if err := s.sweepIndexes(); err != nil {
		return err
	}
	return errors.Join(syncFolder(s.tmp), syncFolder(s.root))
}

// makeFanOut makes a folder and those of the first two digits in it.
func makeFanOut(folder string) error {
	if err := makeFolder(folder); err != nil {
		return err
	}
	for i := range 256 {
		err := os.Mkdir(filepath.Join(folder, fmt.Sprintf("%02x", i)), 0o700)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	// Synced even if nothing was made: whoever made them may have been killed before this.
	return syncFolder(folder)
}

// Create begins a blob.
func (s *Store) Create(ctx context.Context) (content.Writer, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("create content: %w", err)
	}
	f, err := os.CreateTemp(s.tmp, "blob-*") // mode 0600
	if err != nil {
		return nil, fmt.Errorf("create content: %w", spaceError(err))
	}
	failpoint.Hit("content/after-create")
	return newWriter(ctx, s, f), nil
}

// Open returns a *File, which can seek and be read from many goroutines.
func (s *Store) Open(ctx context.Context, digest string, offset, length int64) (io.ReadCloser, error) {
	path, err := s.path(ctx, digest)
	if err != nil {
		return nil, fmt.Errorf("open content: %w", err)
	}
	return openSection(path, "content "+digest, offset, length)
}

// openSection opens a range of a file, which what names in errors.
func openSection(path, what string, offset, length int64) (io.ReadCloser, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", what, notFound(err))
	}
	section, err := section(f, offset, length)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", what, err), f.Close())
	}
	return section, nil
}

// Stat describes a blob.
func (s *Store) Stat(ctx context.Context, digest string) (content.Info, error) {
	path, err := s.path(ctx, digest)
	if err != nil {
		return content.Info{}, fmt.Errorf("stat content: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return content.Info{}, fmt.Errorf("stat content %s: %w", digest, notFound(err))
	}
	return content.Info{Digest: digest, Size: info.Size(), ModTime: info.ModTime()}, nil
}

// Delete removes a blob.
func (s *Store) Delete(ctx context.Context, digest string) error {
	path, err := s.path(ctx, digest)
	if err != nil {
		return fmt.Errorf("delete content: %w", err)
	}
	if err := os.Remove(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("delete content %s: %w", digest, err)
	}
	failpoint.Hit("content/after-delete")
	if err := errors.Join(syncFolder(filepath.Dir(path)), s.deleteIndex(digest)); err != nil {
		return fmt.Errorf("delete content %s: %w", digest, err)
	}
	return nil
}

// Walk calls fn for each blob, ordered by digest. Files that are no blobs are passed over.
func (s *Store) Walk(ctx context.Context, fn func(content.Info) error) error {
	for i := range 256 {
		if err := s.walkFolder(ctx, fmt.Sprintf("%02x", i), fn); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) walkFolder(ctx context.Context, name string, fn func(content.Info) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("walk content: %w", err)
	}
	entries, err := os.ReadDir(filepath.Join(s.blobs, name))
	if err != nil {
		return fmt.Errorf("walk content: %w", err)
	}
	for _, entry := range entries {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("walk content: %w", err)
		}
		digest := content.Algorithm + ":" + entry.Name()
		if _, err := content.ParseDigest(digest); err != nil || !strings.HasPrefix(entry.Name(), name) || !entry.Type().IsRegular() {
			continue
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted since the folder was read
		}
		if err != nil {
			return fmt.Errorf("walk content: %w", err)
		}
		if err := fn(content.Info{Digest: digest, Size: info.Size(), ModTime: info.ModTime()}); err != nil {
			return err
		}
	}
	return nil
}

// Sweep does nothing: what dead writers left has been removed by Open, and the folder
// belongs to this process since.
func (s *Store) Sweep(context.Context, time.Duration) error { return nil }

// path returns where the blob of a digest stands.
func (s *Store) path(ctx context.Context, digest string) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	return in(s.blobs, digest)
}

// in returns where a digest stands in a folder that fans out.
func in(folder, digest string) (string, error) {
	hex, err := content.ParseDigest(digest)
	if err != nil {
		return "", err
	}
	return filepath.Join(folder, hex[:2], hex), nil
}
