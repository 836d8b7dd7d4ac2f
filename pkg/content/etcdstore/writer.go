// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"rukpak.io/apiserver/pkg/content"
)

// abortTimeout is how long an abort may take. What it leaves is for Sweep.
const abortTimeout = 10 * time.Second

// writer is one blob on its way. upload is nil when it is finished.
type writer struct {
	ctx    context.Context // of Create; for Write
	upload *upload
	*content.Sum
	err error // of the first Write that failed
}

var _ content.Writer = (*writer)(nil)

func newWriter(ctx context.Context, s *Store) *writer {
	return &writer{ctx: ctx, upload: s.newUpload(), Sum: content.NewSum()}
}

func (w *writer) Write(p []byte) (int, error) {
	if w.upload == nil {
		return 0, content.ErrFinished
	}
	if w.err == nil {
		w.err = w.ctx.Err()
	}
	var n int
	if w.err == nil {
		n, w.err = w.upload.write(w.ctx, p)
		_, _ = w.Sum.Write(p[:n])
	}
	if w.err != nil {
		return n, fmt.Errorf("write content: %w", w.err)
	}
	return n, nil
}

func (w *writer) Commit(ctx context.Context, digest string) error {
	if w.upload == nil {
		return fmt.Errorf("commit content %s: %w", digest, content.ErrFinished)
	}
	if err := w.commit(ctx, digest); err != nil {
		return errors.Join(fmt.Errorf("commit content: %w", err), w.Abort())
	}
	w.upload = nil
	return nil
}

func (w *writer) commit(ctx context.Context, digest string) error {
	if w.err != nil {
		return w.err
	}
	key, err := w.upload.store.key(ctx, blobs, digest)
	if err != nil {
		return err
	}
	if err := w.Check(digest); err != nil {
		return err
	}
	return w.upload.commit(ctx, key)
}

func (w *writer) Abort() error {
	if w.upload == nil {
		return nil
	}
	u := w.upload
	w.upload = nil
	// The context of Create may be what ended the writing.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), abortTimeout)
	defer cancel()
	if err := u.abort(ctx); err != nil {
		return fmt.Errorf("abort content: %w", err)
	}
	return nil
}

// PutIndex keeps an index beside a blob.
func (s *Store) PutIndex(ctx context.Context, digest string, r io.Reader, size int64) error {
	if err := s.putIndex(ctx, digest, r, size); err != nil {
		return fmt.Errorf("store index of content %s: %w", digest, err)
	}
	return nil
}

func (s *Store) putIndex(ctx context.Context, digest string, r io.Reader, size int64) (err error) {
	blobKey, err := s.key(ctx, blobs, digest)
	if err != nil {
		return err
	}
	key, err := s.key(ctx, indexes, digest)
	if err != nil {
		return err
	}
	u := s.newUpload()
	defer func() {
		if err != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
			defer cancel()
			err = errors.Join(err, u.abort(ctx))
		}
	}()
	if _, err := io.Copy(uploadWriter{ctx, u}, content.Exactly(r, size)); err != nil {
		return err
	}
	return u.commit(ctx, key, blobKey)
}

// uploadWriter is an upload as an io.Writer.
type uploadWriter struct {
	ctx context.Context
	u   *upload
}

func (w uploadWriter) Write(p []byte) (int, error) { return w.u.write(w.ctx, p) }

// OpenIndex returns a reader as that of a blob.
func (s *Store) OpenIndex(ctx context.Context, digest string, offset, length int64) (io.ReadCloser, error) {
	key, err := s.key(ctx, indexes, digest)
	if err != nil {
		return nil, fmt.Errorf("open index: %w", err)
	}
	r, err := s.open(ctx, key, offset, length)
	if err != nil {
		return nil, fmt.Errorf("open index of content %s: %w", digest, err)
	}
	r.changes = true
	return r, nil
}
