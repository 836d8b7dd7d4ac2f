// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"rukpak.io/apiserver/pkg/platform"
	"rukpak.io/apiserver/pkg/tarball"
)

// bounds are what an image may be as a whole, its unselected parts included.
type bounds struct {
	compressed   int64 // bytes of all layers as they are sent
	uncompressed int64 // bytes of all layers' tars
	entries      int64 // of all layers' tars
}

var defaultFloor = bounds{compressed: 1 << 30, uncompressed: 4 << 30, entries: 250_000}

// slack is how many times larger than an archive the image may be that it is taken from.
const slack = 4

// atLeast returns the bounds for an image whose archive has the given limits.
func (b bounds) atLeast(limits tarball.Limits) bounds {
	grow := func(floor, limit int64) int64 {
		if limit <= 0 || limit > math.MaxInt64/slack {
			return math.MaxInt64
		}
		return max(floor, limit*slack)
	}
	return bounds{
		compressed:   grow(b.compressed, limits.CompressedBytes),
		uncompressed: grow(b.uncompressed, limits.Bytes),
		entries:      grow(b.entries, limits.Files),
	}
}

// downloads is how many layers of an image are fetched at once.
const downloads = 3

// maxWindow bounds the window that a zstd layer may ask for, and thereby the
// memory that reading it takes. RFC 8878 asks readers for at least 8 MiB.
const maxWindow = 32 << 20

// layer is a layer in the scratch file, as the registry sent it.
type layer struct {
	digest v1.Hash
	file   io.ReaderAt
	offset int64
	size   int64
}

// fetch downloads the layers of the image that ref names into spool. They are
// returned in the order of the manifest, the lowest first, and each has the
// digest that its manifest says.
func (p *Puller) fetch(ctx context.Context, ref name.Digest, want platform.Platform, bounds bounds, spool *os.File) ([]layer, error) {
	s, err := p.open(ctx, ref.Context())
	if err != nil {
		return nil, err
	}
	digest, err := v1.NewHash(ref.DigestStr())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidReference, err)
	}
	manifest, err := s.image(ctx, digest, want)
	if err != nil {
		return nil, err
	}
	layers, fetched, err := arrange(manifest, bounds, spool)
	if err != nil {
		return nil, err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(downloads)
	for _, l := range fetched {
		group.Go(func() error {
			d := v1.Descriptor{Digest: l.digest, Size: l.size}
			return s.blob(ctx, d, io.NewOffsetWriter(spool, l.offset))
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return layers, nil
}

// arrange gives each layer its place in the scratch file. Fetched holds those
// that are to be downloaded: a layer that comes twice is fetched once.
func arrange(manifest *v1.Manifest, bounds bounds, spool io.ReaderAt) (all, fetched []layer, err error) {
	places := map[v1.Hash]layer{}
	var end int64
	for _, d := range manifest.Layers {
		switch {
		case !d.MediaType.IsLayer():
			return nil, nil, fmt.Errorf("%w: layer %s has the media type %q, which is no layer of an image", ErrNoImage, d.Digest, d.MediaType)
		case d.Digest.Algorithm != "sha256":
			return nil, nil, invalid("layer %s has a digest that is not SHA-256", d.Digest)
		case d.Size < 0:
			return nil, nil, invalid("layer %s has the size %d", d.Digest, d.Size)
		}
		l, ok := places[d.Digest]
		if !ok {
			if d.Size > bounds.compressed-end {
				return nil, nil, fmt.Errorf("all layers: %w", &tarball.LimitError{Limit: tarball.LimitCompressedBytes, Max: bounds.compressed})
			}
			l = layer{digest: d.Digest, file: spool, offset: end, size: d.Size}
			end += d.Size
			places[d.Digest] = l
			fetched = append(fetched, l)
		} else if l.size != d.Size {
			return nil, nil, invalid("layer %s has two sizes", d.Digest)
		}
		all = append(all, l)
	}
	return all, fetched, nil
}

// open returns the layer's tar. The media type is not asked: what a layer is
// compressed with is seen in its first bytes, and it happens that the two differ.
func (l layer) open(ctx context.Context) (io.ReadCloser, error) {
	compressed := bufio.NewReaderSize(contextReader{ctx, io.NewSectionReader(l.file, l.offset, l.size)}, 64<<10)
	// A layer shorter than a magic number is no compressed one.
	magic, err := compressed.Peek(4)
	if err != nil && err != io.EOF {
		return nil, l.failed(err)
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		r, err := gzip.NewReader(compressed)
		if err != nil {
			return nil, l.failed(err)
		}
		return r, nil
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		r, err := zstd.NewReader(compressed, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, l.failed(err)
		}
		return r.IOReadCloser(), nil
	default:
		return io.NopCloser(compressed), nil
	}
}

// failed says that the layer's bytes, which are those of its digest, cannot be read as a layer.
func (l layer) failed(err error) error {
	return invalid("layer %s: %w", l.digest, err)
}

// contextReader stops reading when its context ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
