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
	"time"

	"golang.org/x/time/rate"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/reference"
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

// Tombstones keep committers away from a digest while its blob is removed, as reference.Records do.
type Tombstones interface {
	StartRemoving(ctx context.Context, store, digest string) (reference.Tombstone, bool, error)
	Unmark(ctx context.Context, tomb reference.Tombstone) (bool, error)
}

const (
	// removeTimeout bounds a removal, and the last look before it. The collector waits for longer until it takes it back as that of a process
	// that has ended.
	removeTimeout = 10 * time.Second
	// unmarkTimeout bounds what follows, also when the removal was given up.
	unmarkTimeout = 5 * time.Second
)

// RemoveDamaged looks again at a blob that was found to be damaged, and removes it if it still is. It reports
// whether it did. A blob that is stored anew while it is read is not taken for the old one, and who
// stores it anew while it is removed learns of it (package reference). name is what the tombstones call the store.
func RemoveDamaged(ctx context.Context, tombs Tombstones, name string, store Store, digest string, pace *Pace) (bool, error) {
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
		removed, err := removeSame(ctx, tombs, name, store, digest, before)
		if err != nil {
			return false, fmt.Errorf("remove damaged content: %w", err)
		}
		if removed {
			return true, nil
		}
	}
	return false, fmt.Errorf("remove damaged content %s: it is stored or removed by others again and again", digest)
}

// removeSame removes a blob if it still is the one that was seen before.
func removeSame(ctx context.Context, tombs Tombstones, name string, store Store, digest string, before content.Info) (removed bool, err error) {
	limited, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	tomb, ok, err := tombs.StartRemoving(limited, name, digest)
	if err != nil || !ok {
		return false, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unmarkTimeout)
		defer cancel()
		_, unmarked := tombs.Unmark(ctx, tomb)
		err = errors.Join(err, unmarked)
	}()
	now, err := store.Stat(limited, digest)
	if errors.Is(err, content.ErrNotFound) || err == nil && !sameBlob(before, now) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := store.Delete(limited, digest); err != nil {
		return false, err
	}
	return true, nil
}

// sameBlob reports whether nobody has stored a blob anew between two looks.
func sameBlob(a, b content.Info) bool {
	return a.Size == b.Size && a.ModTime.Equal(b.ModTime)
}
