// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package filesystem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"rukpak.io/apiserver/pkg/content"
)

// PutIndex keeps an index beside a blob. It is not synced: one that a crash takes is made again.
func (s *Store) PutIndex(ctx context.Context, digest string, r io.Reader, size int64) error {
	if err := s.putIndex(ctx, digest, r, size); err != nil {
		return fmt.Errorf("store index of content %s: %w", digest, err)
	}
	return nil
}

func (s *Store) putIndex(ctx context.Context, digest string, r io.Reader, size int64) error {
	blob, err := s.path(ctx, digest)
	if err != nil {
		return err
	}
	if _, err := os.Stat(blob); err != nil {
		return notFound(err)
	}
	path, err := in(s.indexes, digest)
	if err != nil {
		return err
	}
	temporary, err := s.writeTemporary("index-*", content.Exactly(r, size))
	if err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return errors.Join(spaceError(err), os.Remove(temporary))
	}
	// A blob that was deleted meanwhile has taken the index that was there then, not this one.
	if _, err := os.Stat(blob); err != nil {
		return errors.Join(notFound(err), s.deleteIndex(digest))
	}
	return nil
}

// writeTemporary writes r to a new file and returns its name.
func (s *Store) writeTemporary(pattern string, r io.Reader) (string, error) {
	f, err := os.CreateTemp(s.tmp, pattern) // mode 0600
	if err != nil {
		return "", spaceError(err)
	}
	_, err = io.Copy(f, r)
	if err := errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(spaceError(err), os.Remove(f.Name()))
	}
	return f.Name(), nil
}

// OpenIndex returns a *File, as Open does.
func (s *Store) OpenIndex(ctx context.Context, digest string, offset, length int64) (io.ReadCloser, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("open index: %w", err)
	}
	path, err := in(s.indexes, digest)
	if err != nil {
		return nil, fmt.Errorf("open index: %w", err)
	}
	return openSection(path, "index of content "+digest, offset, length)
}

// deleteIndex removes the index of a blob, if there is one.
func (s *Store) deleteIndex(digest string) error {
	path, err := in(s.indexes, digest)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// sweepIndexes removes the indexes whose blobs are gone.
func (s *Store) sweepIndexes() error {
	for i := range 256 {
		folder := fmt.Sprintf("%02x", i)
		entries, err := os.ReadDir(filepath.Join(s.indexes, folder))
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if _, err := os.Stat(filepath.Join(s.blobs, folder, entry.Name())); err == nil {
				continue
			}
			if err := os.RemoveAll(filepath.Join(s.indexes, folder, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

const markFile = "mark"

// ReadMark returns the mark.
func (s *Store) ReadMark(ctx context.Context) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read mark: %w", err)
	}
	mark, err := os.ReadFile(filepath.Join(s.root, markFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read mark: %w", err)
	}
	return mark, nil
}

// WriteMark replaces the mark.
func (s *Store) WriteMark(ctx context.Context, mark []byte) error {
	if err := s.writeMark(ctx, mark); err != nil {
		return fmt.Errorf("write mark: %w", err)
	}
	return nil
}

func (s *Store) writeMark(ctx context.Context, mark []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(mark) > content.MaxMark {
		return fmt.Errorf("%d bytes are more than %d", len(mark), content.MaxMark)
	}
	f, err := os.CreateTemp(s.tmp, "mark-*")
	if err != nil {
		return spaceError(err)
	}
	_, err = f.Write(mark)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(spaceError(err), os.Remove(f.Name()))
	}
	if err := os.Rename(f.Name(), filepath.Join(s.root, markFile)); err != nil {
		return errors.Join(spaceError(err), os.Remove(f.Name()))
	}
	return syncFolder(s.root)
}
