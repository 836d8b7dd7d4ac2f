// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"gocloud.dev/blob"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/failpoint"
	"rukpak.io/apiserver/pkg/panics"
)

const (
	// partSize and parts are what one upload keeps in memory: parts of that size under way, and one that fills.
	partSize = 8 << 20
	parts    = 2
	// maxUploads bounds the uploads at the same time, and with them their memory, to 144 MiB. What is small needs none.
	maxUploads = 6
	// maxPerTenant is how many of them one tenant may have: one that sends slowly holds them for as long as it likes.
	maxPerTenant = maxUploads / 2
	// turnTime is how long a writer waits until one of them ends.
	turnTime = 20 * time.Second

	// abortTime is how long an upload may take to clean up behind itself.
	abortTime = 10 * time.Second
)

var (
	errAborted = errors.New("aborted")
	errBusy    = fmt.Errorf("%w: as many uploads to the object store are under way as there may be: %d, or %d of one namespace", content.ErrBusy, maxUploads, maxPerTenant)
)

func options() *blob.WriterOptions {
	return &blob.WriterOptions{ContentType: "application/octet-stream", BufferSize: partSize, MaxConcurrency: parts}
}

// put stores what a reader gives, and nothing if that ends in an error.
func (s *Store) put(ctx context.Context, key string, r io.Reader) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	source := &source{r: r}
	if !s.cloud.endsByError {
		source.failed = cancel
	}
	err := s.bucket.Upload(ctx, key, source, options())
	if source.err != nil {
		return source.err
	}
	return err
}

// source remembers the error of a reader.
type source struct {
	r      io.Reader
	err    error
	failed func(error)
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
		if s.failed != nil {
			s.failed(err)
		}
	}
	return n, err
}

// upload is an object on its way. What is written goes to the object store as it comes.
type upload struct {
	store  *Store
	key    string
	pipe   *io.PipeWriter
	cancel context.CancelCauseFunc
	ended  chan struct{}
	err    error // once it has ended
}

// startUpload begins an object in tmp, when there is memory for it. It outlives ctx, and is ended by finish or abort.
func (s *Store) startUpload(ctx context.Context) (*upload, error) {
	late, stop := context.WithTimeout(ctx, s.turn)
	defer stop()
	release, err := s.uploads.Take(late, content.Tenant(ctx))
	switch {
	case ctx.Err() != nil && err != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, errBusy
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	r, w := io.Pipe()
	u := &upload{store: s, key: s.prefix + tmpFolder + newID(), pipe: w, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(u.ended)
		defer release()
		u.err = panics.Catch(ctx, "an upload to the object store", func() error {
			err := s.put(ctx, u.key, r)
			if err != nil {
				err = s.explainPut(context.WithoutCancel(ctx), ctx, err)
			}
			return err
		})
		r.CloseWithError(u.err)
	}()
	return u, nil
}

func (u *upload) write(ctx context.Context, p []byte) (int, error) {
	stop := context.AfterFunc(ctx, func() { u.cancel(ctx.Err()) })
	n, err := u.pipe.Write(p)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	return n, err
}

// finish returns when the object is whole and lasting.
func (u *upload) finish(ctx context.Context) error {
	if err := u.pipe.Close(); err != nil {
		return err
	}
	select {
	case <-u.ended:
	case <-ctx.Done():
		u.cancel(ctx.Err())
		<-u.ended
		return ctx.Err()
	}
	return u.err
}

// commit puts what was written, which are size bytes, at a name.
func (u *upload) commit(ctx context.Context, key string, size int64) error {
	if err := u.finish(ctx); err != nil {
		return err
	}
	failpoint.Hit("bucket/after-upload")
	if err := u.store.copy(ctx, key, u.key, size); err != nil {
		return err
	}
	failpoint.Hit("bucket/after-copy")
	// The object is there. What cannot be removed now is left to Sweep.
	_ = u.store.remove(ctx, u.key)
	return nil
}

// copy has the object store copy an object, when it has so many bytes indeed: the copy takes the place of
// what may be whole.
func (s *Store) copy(ctx context.Context, to, from string, size int64) error {
	call, cancel := s.patient.copy(ctx, size)
	defer cancel()
	attributes, err := s.bucket.Attributes(call, from)
	if err != nil {
		return s.explainPut(ctx, call, err)
	}
	if attributes.Size != size {
		return fmt.Errorf("the object store made %d bytes of %d", attributes.Size, size)
	}
	if s.cloud.copy != nil {
		err = s.cloud.copy(call, to, from, size)
	} else {
		err = s.bucket.Copy(call, to, from, nil)
	}
	if err != nil {
		return s.explainPut(ctx, call, err)
	}
	return nil
}

// abort ends the upload and removes what there is of it.
func (u *upload) abort() error {
	u.pipe.CloseWithError(errAborted)
	select {
	case <-u.ended:
	case <-time.After(abortTime):
		u.cancel(errAborted)
		<-u.ended
	}
	defer u.cancel(nil)
	if u.err != nil {
		return nil // nothing became visible
	}
	ctx, cancel := context.WithTimeout(context.Background(), abortTime)
	defer cancel()
	return u.store.remove(ctx, u.key)
}
