// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/verify"
	"rukpak.io/apiserver/pkg/panics"
	"rukpak.io/apiserver/pkg/tarball"
	"rukpak.io/apiserver/pkg/tarball/toc"
)

const (
	// maxRebuilds bounds the indexes that are made anew at the same time. Each reads a whole archive.
	maxRebuilds = 2
	// rebuildTimeout bounds the time that it takes.
	rebuildTimeout = 10 * time.Minute
	// rebuildPatience is how long a reader waits for it. kube-apiserver ends the request after a minute.
	rebuildPatience = 40 * time.Second
	indexTimeout    = time.Minute
)

// errRebuilding says that an index is being made.
var errRebuilding = errors.New("the list of the files is being made anew")

// indexes finds the tables of contents of archives, and makes those anew that are missing or damaged.
type indexes struct {
	scratch string
	slots   chan struct{}

	mu     sync.Mutex
	builds map[string]*build // by digest
}

// build is an index that is being made.
type build struct {
	done chan struct{}
	err  error // when done is closed
}

func newIndexes(scratch string) *indexes {
	return &indexes{scratch: scratch, slots: make(chan struct{}, maxRebuilds), builds: map[string]*build{}}
}

// open opens the index of a blob, which it makes if need be.
func (x *indexes) open(ctx context.Context, store content.Store, digest string) (*toc.Index, error) {
	index, err := toc.Open(ctx, digest, indexOpener(store, digest))
	if !errors.Is(err, toc.ErrDamaged) {
		return index, err
	}
	if err := x.rebuild(ctx, store, digest, err); err != nil {
		return nil, err
	}
	return toc.Open(ctx, digest, indexOpener(store, digest))
}

// indexOpener opens parts of the index of a blob. One that is missing, or shorter than it says, is as good as damaged.
func indexOpener(store content.Store, digest string) toc.Opener {
	return func(ctx context.Context, offset, length int64) (io.ReadCloser, error) {
		r, err := store.OpenIndex(ctx, digest, offset, length)
		if errors.Is(err, content.ErrNotFound) || errors.Is(err, content.ErrOutOfRange) {
			return nil, fmt.Errorf("%w: %w", toc.ErrDamaged, err)
		}
		return r, err
	}
}

func blobOpener(store content.Store, digest string) toc.Opener {
	return func(ctx context.Context, offset, length int64) (io.ReadCloser, error) {
		return store.Open(ctx, digest, offset, length)
	}
}

// rebuild makes the index of a blob anew, once for all that ask for it meanwhile. Its error is errDamaged if it
// turns out that the blob is damaged, and errRebuilding if it takes long.
func (x *indexes) rebuild(ctx context.Context, store content.Store, digest string, cause error) error {
	x.mu.Lock()
	b := x.builds[digest]
	if b == nil {
		b = &build{done: make(chan struct{})}
		x.builds[digest] = b
		klog.FromContext(ctx).Info("Making the index of content anew", "digest", digest, "cause", cause.Error())
		// What was begun for one reader is of use to the next, even when that one goes away.
		go x.run(context.WithoutCancel(ctx), store, digest, b)
	}
	x.mu.Unlock()
	patience := time.NewTimer(rebuildPatience)
	defer patience.Stop()
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return ctx.Err()
	case <-patience.C:
		return errRebuilding
	}
}

func (x *indexes) run(ctx context.Context, store content.Store, digest string, b *build) {
	ctx, cancel := context.WithTimeout(ctx, rebuildTimeout)
	defer cancel()
	select {
	case x.slots <- struct{}{}:
		b.err = panics.Catch(ctx, "the index of content", func() error { return x.make(ctx, store, digest) })
		<-x.slots
	case <-ctx.Done():
		b.err = ctx.Err()
	}
	result := "rebuilt"
	if b.err != nil {
		result = "failed"
		klog.FromContext(ctx).Error(b.err, "Cannot make the index of content", "digest", digest)
	}
	indexBuilds.WithLabelValues(result).Inc()
	x.mu.Lock()
	delete(x.builds, digest)
	x.mu.Unlock()
	close(b.done)
}

// make reads a blob and stores its index.
func (x *indexes) make(ctx context.Context, store content.Store, digest string) (err error) {
	blob, err := store.Open(ctx, digest, 0, -1)
	if err != nil {
		return err
	}
	builder, err := toc.NewBuilder(x.scratch)
	if err != nil {
		return errors.Join(err, blob.Close())
	}
	defer func() { err = errors.Join(err, builder.Close()) }()
	summary, err := tarball.VerifyIndexed(ctx, blob, tarball.Options{Index: builder})
	if err := errors.Join(err, blob.Close()); err != nil {
		return x.blame(ctx, store, digest, err)
	}
	if summary.Digest != digest {
		return fmt.Errorf("%w: %s has %s", errDamaged, digest, summary.Digest)
	}
	return put(ctx, store, builder, summary)
}

// blame tells whether an archive could not be read because its bytes are other ones. It may be that only what is
// taken for an archive has changed.
func (x *indexes) blame(ctx context.Context, store content.Store, digest string, cause error) error {
	if _, err := verify.Blob(ctx, store, digest, nil); err != nil {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return cause
}

// put stores the index of a blob.
func put(ctx context.Context, store content.Store, builder *toc.Builder, summary tarball.Summary) error {
	index, size, err := builder.Finish(summary)
	if err != nil {
		return err
	}
	return store.PutIndex(ctx, summary.Digest, index, size)
}

// indexingWriter stores the index of a blob when that is committed. Without it the content is as good, so its failures are logged;
// it is made by the first who needs it then.
type indexingWriter struct {
	content.Writer
	store   content.Store
	builder *toc.Builder // nil if there can be none
	// summary is set once the archive is whole.
	summary tarball.Summary
}

// newIndexingWriter begins an index beside a blob. The caller calls drop.
func (x *indexes) newIndexingWriter(ctx context.Context, store content.Store, w content.Writer) *indexingWriter {
	builder, err := toc.NewBuilder(x.scratch)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Content is taken without an index")
	}
	return &indexingWriter{Writer: w, store: store, builder: builder}
}

// indexer is what an archive is shown to, nil if nothing is.
func (w *indexingWriter) indexer() tarball.Indexer {
	if w.builder == nil {
		return nil
	}
	return w.builder
}

// Commit commits the blob, and then its index.
func (w *indexingWriter) Commit(ctx context.Context, digest string) error {
	if err := w.Writer.Commit(ctx, digest); err != nil || w.builder == nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, indexTimeout)
	defer cancel()
	if err := put(limited, w.store, w.builder, w.summary); err != nil {
		indexBuilds.WithLabelValues("failed").Inc()
		klog.FromContext(ctx).Error(err, "Cannot store the index of content", "digest", digest)
		return nil
	}
	indexBuilds.WithLabelValues("stored").Inc()
	return nil
}

func (w *indexingWriter) drop(ctx context.Context) {
	if w.builder == nil {
		return
	}
	if err := w.builder.Close(); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot close the scratch file of an index")
	}
}
