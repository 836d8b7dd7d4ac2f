// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package filesystem

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/failpoint"
)

// writer is one blob on its way. file is nil when it is finished.
type writer struct {
	ctx   context.Context // of Create; for Write
	store *Store
	file  *os.File
	*content.Sum
	err error // of the first Write that failed: the bytes are not what the caller wrote
}

var _ content.Writer = (*writer)(nil)

func newWriter(ctx context.Context, s *Store, f *os.File) *writer {
	return &writer{ctx: ctx, store: s, file: f, Sum: content.NewSum()}
}

func (w *writer) Write(p []byte) (int, error) {
	if w.file == nil {
		return 0, content.ErrFinished
	}
	if w.err == nil {
		w.err = w.ctx.Err()
	}
	if w.err != nil {
		return 0, fmt.Errorf("write content: %w", w.err)
	}
	n, err := w.file.Write(p)
	_, _ = w.Sum.Write(p[:n])
	if err != nil {
		w.err = spaceError(err)
		return n, fmt.Errorf("write content: %w", w.err)
	}
	failpoint.Hit("content/after-write")
	return n, nil
}

func (w *writer) Commit(ctx context.Context, digest string) error {
	if w.file == nil {
		return fmt.Errorf("commit content %s: %w", digest, content.ErrFinished)
	}
	if err := w.commit(ctx, digest); err != nil {
		return errors.Join(fmt.Errorf("commit content: %w", err), w.Abort())
	}
	return nil
}

// commit checks, syncs, renames, syncs. Until the rename, an error leaves the file to Abort.
func (w *writer) commit(ctx context.Context, digest string) error {
	if err := errors.Join(w.err, ctx.Err()); err != nil {
		return err
	}
	path, err := w.store.path(ctx, digest)
	if err != nil {
		return err
	}
	if err := w.Check(digest); err != nil {
		return err
	}
	if err := w.file.Sync(); err != nil {
		return spaceError(err)
	}
	failpoint.Hit("content/before-rename")
	if err := os.Rename(w.file.Name(), path); err != nil {
		return spaceError(err)
	}
	failpoint.Hit("content/after-rename")
	file := w.file
	w.file = nil
	if err := errors.Join(file.Close(), syncFolder(filepath.Dir(path)), syncFolder(w.store.tmp)); err != nil {
		return spaceError(err)
	}
	failpoint.Hit("content/after-dirsync")
	return nil
}

func (w *writer) Abort() error {
	if w.file == nil {
		return nil
	}
	file := w.file
	w.file = nil
	if err := errors.Join(file.Close(), os.Remove(file.Name())); err != nil {
		return fmt.Errorf("abort content: %w", err)
	}
	return nil
}
