// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package verify reads stored content again, to find what a disk, or whoever has
// access to it, has changed since it was stored.
//
// Blob reads one blob. A Scrubber reads all of them, slowly and again and again.
// Check compares a store with the records of it and with what bundles name, and
// Repair mends what can be mended without a decision of somebody's.
package verify

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/time/rate"

	"rukpak.io/apiserver/pkg/content"
)

// ErrDamaged means that stored bytes do not have the digest that they are stored under.
var ErrDamaged = errors.New("content is damaged")

// stepSize is how much is read in one step. It bounds the memory that a reading takes, and is the burst of a Pace.
const stepSize = 256 << 10

// Store is what verifying needs of a content.Store.
type Store interface {
	Open(ctx context.Context, digest string, offset, length int64) (io.ReadCloser, error)
	Stat(ctx context.Context, digest string) (content.Info, error)
	Walk(ctx context.Context, fn func(content.Info) error) error
	Delete(ctx context.Context, digest string) error
}

// Pace bounds how fast stored bytes are read. A nil Pace does not. It can be shared by many goroutines.
type Pace struct{ limiter *rate.Limiter }

// NewPace returns a Pace of so many bytes a second, nil for 0 or less.
func NewPace(bytesPerSecond int64) *Pace {
	if bytesPerSecond <= 0 {
		return nil
	}
	return &Pace{rate.NewLimiter(rate.Limit(bytesPerSecond), stepSize)}
}

func (p *Pace) wait(ctx context.Context, n int) error {
	if p == nil {
		return ctx.Err()
	}
	return p.limiter.WaitN(ctx, n)
}

// Blob reads a blob to its end and returns how many bytes that was. ErrDamaged if they do not have the digest,
// content.ErrNotFound if there is no such blob. Any other error means that nobody knows.
func Blob(ctx context.Context, store Store, digest string, pace *Pace) (int64, error) {
	r, err := store.Open(ctx, digest, 0, -1)
	if err != nil {
		return 0, fmt.Errorf("verify: %w", err)
	}
	// Nothing is written, so nothing is lost by an error of Close.
	defer r.Close()
	var (
		sum    = content.NewSum()
		buffer = make([]byte, stepSize)
	)
	for {
		m, err := r.Read(buffer)
		_, _ = sum.Write(buffer[:m])
		if err == io.EOF {
			break
		}
		if err == nil {
			err = pace.wait(ctx, m)
		}
		if errors.Is(err, content.ErrDigestMismatch) {
			// A store may look at what it reads itself.
			return sum.Size(), fmt.Errorf("%w: %s after %d bytes: %w", ErrDamaged, digest, sum.Size(), err)
		}
		if err != nil {
			return sum.Size(), fmt.Errorf("verify content %s after %d bytes: %w", digest, sum.Size(), err)
		}
	}
	if got := sum.Digest(); got != digest {
		return sum.Size(), fmt.Errorf("%w: %s has %d bytes whose digest is %s", ErrDamaged, digest, sum.Size(), got)
	}
	return sum.Size(), nil
}

// maxLooks bounds how often RemoveDamaged looks again at a blob that is stored anew meanwhile.
const maxLooks = 3

// RemoveDamaged looks again at a blob that was found to be damaged, and removes it if it still is. It reports
// whether it did. A blob that is stored anew while it is read is not taken for the old one.
//
// Between the last look and the removal somebody may store the blob anew, and lose it again: then it is missing,
// which is found like any other loss. Digests that are not damaged are not touched.
func RemoveDamaged(ctx context.Context, store Store, digest string, pace *Pace) (bool, error) {
	for range maxLooks {
		before, err := store.Stat(ctx, digest)
		if errors.Is(err, content.ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("remove damaged content: %w", err)
		}
		_, err = Blob(ctx, store, digest, pace)
		switch {
		case err == nil, errors.Is(err, content.ErrNotFound):
			return false, nil
		case !errors.Is(err, ErrDamaged):
			return false, err
		}
		after, err := store.Stat(ctx, digest)
		if err != nil && !errors.Is(err, content.ErrNotFound) {
			return false, fmt.Errorf("remove damaged content: %w", err)
		}
		if err != nil || !sameBlob(before, after) {
			continue
		}
		if err := store.Delete(ctx, digest); err != nil {
			return false, fmt.Errorf("remove damaged content: %w", err)
		}
		return true, nil
	}
	return false, fmt.Errorf("remove damaged content %s: it is stored anew again and again", digest)
}

// sameBlob reports whether nobody has stored a blob anew between two looks.
func sameBlob(a, b content.Info) bool {
	return a.Size == b.Size && a.ModTime.Equal(b.ModTime)
}
