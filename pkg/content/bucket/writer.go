// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/rand"
	"errors"
	"fmt"
	"io"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/failpoint"
)

// inMemory is up to how many bytes a writer keeps until it is committed.
const inMemory = 4 << 20

// writer is one blob on its way.
type writer struct {
	ctx   context.Context // of Create; for Write
	store *Store
	*content.Sum
	err      error   // of the first Write that failed
	buffer   []byte  // all bytes, until they are too many
	upload   *upload // all bytes, when they are
	finished bool
}

var _ content.Writer = (*writer)(nil)

func newWriter(ctx context.Context, s *Store) *writer {
	return &writer{ctx: ctx, store: s, Sum: content.NewSum()}
}

func (w *writer) Write(p []byte) (int, error) {
	if w.finished {
		return 0, content.ErrFinished
	}
	if w.err == nil {
		w.err = w.ctx.Err()
	}
	var n int
	if w.err == nil {
		n, w.err = w.write(p)
		_, _ = w.Sum.Write(p[:n])
	}
	if w.err != nil {
		return n, fmt.Errorf("write content: %w", w.err)
	}
	return n, nil
}

func (w *writer) write(p []byte) (int, error) {
	if most := w.store.cloud.most; most > 0 && w.Size()+int64(len(p)) > most {
		return 0, fmt.Errorf("this store takes no content of more than %d bytes", most)
	}
	if w.upload == nil && len(w.buffer)+len(p) <= inMemory {
		w.buffer = append(w.buffer, p...)
		return len(p), nil
	}
	if w.upload == nil {
		var err error
		if w.upload, err = w.store.startUpload(w.ctx); err != nil {
			return 0, err
		}
		if _, err := w.upload.write(w.ctx, w.buffer); err != nil {
			return 0, err
		}
		w.buffer = nil
	}
	return w.upload.write(w.ctx, p)
}

func (w *writer) Commit(ctx context.Context, digest string) error {
	if w.finished {
		return fmt.Errorf("commit content %s: %w", digest, content.ErrFinished)
	}
	if err := w.commit(ctx, digest); err != nil {
		return errors.Join(fmt.Errorf("commit content: %w", err), w.Abort())
	}
	w.finished = true
	return nil
}

func (w *writer) commit(ctx context.Context, digest string) error {
	if w.err != nil {
		return w.err
	}
	key, err := w.store.key(ctx, blobFolder, digest)
	if err != nil {
		return err
	}
	if err := w.Check(digest); err != nil {
		return err
	}
	if w.upload == nil {
		if err := w.store.putBytes(ctx, key, w.buffer); err != nil {
			return err
		}
		failpoint.Hit("bucket/after-put")
		return nil
	}
	return w.upload.commit(ctx, key, w.Size())
}

func (w *writer) Abort() error {
	if w.finished {
		return nil
	}
	w.finished, w.buffer = true, nil
	if w.upload == nil {
		return nil
	}
	if err := w.upload.abort(); err != nil {
		return fmt.Errorf("abort content: %w", err)
	}
	return nil
}

// putBytes puts a small object. Its hash goes with it: there are servers that take the bytes that came
// until the sender died for all of them, unless they have something to check them by.
func (s *Store) putBytes(ctx context.Context, key string, text []byte) error {
	call, cancel := s.patient.transfer(ctx, int64(len(text)))
	defer cancel()
	sum, o := md5.Sum(text), options()
	s.cloud.check(o, sum[:])
	if err := s.bucket.Upload(call, key, bytes.NewReader(text), o); err != nil {
		return s.explainPut(ctx, call, err)
	}
	return nil
}

// errSwept is the error of a writer that Sweep took for dead.
var errSwept = errors.New("the upload took too long and was given up")

// explainPut is explain for a writer, who misses nothing but what it wrote itself.
func (s *Store) explainPut(ctx, call context.Context, err error) error {
	if err = s.explain(ctx, call, err); errors.Is(err, content.ErrNotFound) {
		return errSwept
	}
	return err
}

// PutIndex keeps an index beside a blob.
func (s *Store) PutIndex(ctx context.Context, digest string, r io.Reader, size int64) error {
	if err := s.putIndex(ctx, digest, r, size); err != nil {
		return fmt.Errorf("store index of content %s: %w", digest, err)
	}
	return nil
}

func (s *Store) putIndex(ctx context.Context, digest string, r io.Reader, size int64) error {
	blobKey, err := s.key(ctx, blobFolder, digest)
	if err != nil {
		return err
	}
	key, err := s.key(ctx, indexFolder, digest)
	if err != nil {
		return err
	}
	if err := s.putExactly(ctx, key, content.Exactly(r, size), size); err != nil {
		return err
	}
	// Asked afterwards, and not before as well: a blob that was deleted meanwhile has taken the index that was there then, not this one.
	if _, err := s.head(ctx, blobKey); err != nil {
		if errors.Is(err, content.ErrNotFound) {
			return errors.Join(err, s.remove(ctx, key))
		}
		return err
	}
	return nil
}

// putExactly puts the bytes of a reader, by way of an object in tmp if they are many.
func (s *Store) putExactly(ctx context.Context, key string, r io.Reader, size int64) error {
	if size <= inMemory {
		text, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		return s.putBytes(ctx, key, text)
	}
	u, err := s.startUpload(ctx)
	if err != nil {
		return err
	}
	_, err = io.Copy(writerFunc(func(p []byte) (int, error) { return u.write(ctx, p) }), r)
	if err == nil {
		err = u.commit(ctx, key, size)
	}
	if err != nil {
		return errors.Join(err, u.abort())
	}
	return nil
}

// writerFunc is a function as an io.Writer.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// OpenIndex returns a reader as that of a blob.
func (s *Store) OpenIndex(ctx context.Context, digest string, offset, length int64) (io.ReadCloser, error) {
	key, err := s.key(ctx, indexFolder, digest)
	if err != nil {
		return nil, fmt.Errorf("open index: %w", err)
	}
	r, err := s.open(ctx, key, offset, length)
	if err != nil {
		return nil, fmt.Errorf("open index of content %s: %w", digest, err)
	}
	r.fixed = true
	return r, nil
}

// newID names what one writer writes.
func newID() string { return rand.Text() }
