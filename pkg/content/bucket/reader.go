// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"gocloud.dev/blob"

	"rukpak.io/apiserver/pkg/content"
)

const (
	// resumes is how often in a row a reader that gets no byte tries to go on.
	resumes = 4
	// resumePause is how long it waits before the second try in a row; then twice as long each time.
	resumePause = 200 * time.Millisecond
)

// reader reads a range of an object.
type reader struct {
	ctx     context.Context
	store   *Store
	key     string
	size    int64 // of the object
	at, end int64
	changed time.Time
	fixed   bool // what has the name later may have other bytes
	body    *blob.Reader
	cancel  context.CancelCauseFunc // of body
	failed  int                     // tries since the last byte
	closed  bool
}

// open takes the range that content.Store's Open describes.
func (s *Store) open(ctx context.Context, key string, offset, length int64) (*reader, error) {
	if offset < 0 {
		return nil, fmt.Errorf("%w: offset %d", content.ErrOutOfRange, offset)
	}
	r := &reader{ctx: ctx, store: s, key: key, at: offset}
	if err := r.connect(length); err != nil {
		return nil, err
	}
	rest := r.size - offset
	if rest < 0 {
		return nil, errors.Join(fmt.Errorf("%w: offset %d of %d bytes", content.ErrOutOfRange, offset, r.size), r.Close())
	}
	if length < 0 || length > rest {
		length = rest
	}
	r.end = offset + length
	return r, nil
}

// connect asks for length bytes from the position, and learns the size of the object. There is
// no body where there is nothing to read.
func (r *reader) connect(length int64) error {
	if length > math.MaxInt64-r.at {
		length = -1
	}
	ctx, cancel := context.WithCancelCause(r.ctx)
	late := time.AfterFunc(r.store.patient.Call, func() { cancel(errSlow) })
	body, err := r.store.bucket.NewRangeReader(ctx, r.key, r.at, length, nil)
	late.Stop()
	if err == nil {
		r.body, r.cancel, r.size, r.changed = body, cancel, body.Size(), body.ModTime()
		return nil
	}
	err = r.store.explain(r.ctx, ctx, err)
	cancel(nil)
	if r.at == 0 && length < 0 || errors.Is(err, content.ErrNotFound) || r.ctx.Err() != nil {
		return err
	}
	// Object stores refuse a range that starts at the end.
	attributes, headErr := r.store.head(r.ctx, r.key)
	if headErr != nil || attributes.Size > r.at {
		return err
	}
	r.size, r.changed = attributes.Size, attributes.ModTime
	return nil
}

// reconnect goes on from the position, if the object still is the same.
func (r *reader) reconnect() error {
	size, changed := r.size, r.changed
	if err := r.connect(r.end - r.at); err != nil {
		return err
	}
	if r.body == nil || r.size != size || r.fixed && !r.changed.Equal(changed) {
		r.drop()
		r.size, r.changed = size, changed
		return errReplaced
	}
	return nil
}

var errReplaced = errors.New("it was replaced by another while it was read")

func (r *reader) Read(p []byte) (int, error) {
	if r.closed {
		return 0, errors.New("read content: closed already")
	}
	if len(p) == 0 && r.at < r.end {
		return 0, nil
	}
	for r.at < r.end {
		n, err := r.read(p[:min(int64(len(p)), r.end-r.at)])
		r.at += int64(n)
		if n > 0 {
			r.failed = 0
			return n, nil
		}
		if err == nil {
			continue
		}
		if err := r.pause(err); err != nil {
			return 0, fmt.Errorf("read content at %d of %d bytes: %w", r.at, r.size, err)
		}
	}
	return 0, io.EOF
}

// read reads from the connection, or makes one.
func (r *reader) read(p []byte) (int, error) {
	if r.body == nil {
		if err := r.reconnect(); err != nil {
			return 0, err
		}
	}
	n, err := r.body.Read(p)
	if err == nil || n > 0 && r.at+int64(n) == r.end {
		return n, nil
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	r.drop()
	return n, err
}

// pause waits before the next try. It returns the error if there is to be none.
func (r *reader) pause(err error) error {
	if r.failed++; r.failed > resumes || errors.Is(err, content.ErrNotFound) || errors.Is(err, errReplaced) || r.ctx.Err() != nil {
		return errors.Join(r.ctx.Err(), err)
	}
	if r.failed == 1 {
		return nil
	}
	select {
	case <-r.ctx.Done():
		return errors.Join(r.ctx.Err(), err)
	case <-time.After(resumePause << (r.failed - 2)):
		return nil
	}
}

// drop ends the connection. What that says is of no use: the bytes are read or they are not.
func (r *reader) drop() {
	if r.body != nil {
		r.cancel(nil)
		_ = r.body.Close()
		r.body = nil
	}
}

// Close ends the reading.
func (r *reader) Close() error {
	r.closed = true
	r.drop()
	return nil
}
