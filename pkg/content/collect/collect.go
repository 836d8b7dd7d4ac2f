// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package collect removes content that no bundle has any more.
//
// A round marks and sweeps:
//
//  1. It notes the time, and then asks which (bundle UID, digest) pairs the API
//     state names.
//  2. A record that is not named and older than the grace period is removed, in
//     a transaction on its revision, so a committer that adds it again wins.
//  3. A blob whose digest has no record gets a pending tombstone, in a transaction
//     that looks for records again.
//  4. A tombstone that was pending for the grace period becomes deleting, in a
//     transaction that looks for records once more; then the blob is deleted, and
//     then the tombstone is removed.
//
// A deletion that failed, or whose process ended, is taken back after half a minute,
// when it cannot be going on any more: its tombstone is pending again, for the whole
// grace period. Nobody can store that content until then, so this comes first in a
// round, and does not need the API state. A time that is further ahead than the grace
// period was written by a clock that was wrong, and is replaced by the present one.
//
// Every step can be the last of a process: the next round, here or in another
// process, goes on from what stands in etcd. Why committers lose nothing is said
// in package reference; a model test walks all interleavings of both sides.
//
// # When the API state looks lost
//
// Content must not follow an API state that was lost or is read from the wrong
// place. A round is suspicious if it would remove
//
//   - any record although the API state names no content at all, or
//   - more than Config.HoldAbove records, or give more than HoldAbove blobs
//     tombstones, and these are more than half of all.
//
// Such a round removes nothing more and ends with ErrHeld. When all rounds of
// Config.Hold in one Run were suspicious, the state is taken for what it is,
// and collected. A round that could not read the state, or failed otherwise, is none
// of these. Nothing is held back when bundles are deleted one by one with their
// records, as the server does. Besides, a blob that the API state names is never
// deleted, whether it has a record or not.
package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/reference"
)

// ErrHeld is the error of a round that stopped because the API state looks lost.
var ErrHeld = errors.New("content is held back because the API state looks lost")

// Pair says that a bundle's state names content, as its current one or in its history.
type Pair struct {
	BundleUID string
	Digest    string // sha256:HEX
}

// ComparePairs orders pairs by digest, and then by bundle.
func ComparePairs(a, b Pair) int {
	return cmp.Or(cmp.Compare(a.Digest, b.Digest), cmp.Compare(a.BundleUID, b.BundleUID))
}

// Store is what a Collector needs of a content.Store.
type Store interface {
	Walk(ctx context.Context, fn func(content.Info) error) error
	Delete(ctx context.Context, digest string) error
}

// Config is what a Collector works on. Every field but Observe is required.
type Config struct {
	// StoreName is the name of Store in the records.
	StoreName string
	Store     Store
	Records   *reference.Records

	// Live gives every pair that the API state names. It reads the state as it is when it
	// is called, never from a cache: a status that was written before the call and is
	// missing in the answer can lose its content. Pairs of other stores do no harm.
	Live func(ctx context.Context) (map[Pair]struct{}, error)

	// Now is the clock, the same as that of Records up to what Grace allows.
	Now func() time.Time

	// Grace is longer than any transfer, than the time from Add to the status that names the
	// digest, and than the difference of clocks, all together.
	Grace time.Duration

	// Hold is how long the API state must look lost to be believed; see the package.
	Hold time.Duration

	// HoldAbove is the number of records, or of blobs, up to which a removal of more than half
	// of them is not suspicious.
	HoldAbove int

	// Observe is called by Run after every round with what Collect returned.
	Observe func(Report, error)
}

const (
	// deleteTimeout bounds a deletion, so that one of a process that hangs cannot hit
	// content that was stored after another process took it back.
	deleteTimeout = 15 * time.Second
	// takeBack is how old a deletion must be to be over. Clocks may differ by what it is longer than a deletion.
	takeBack = 2 * deleteTimeout
)

// Report is what a round did and saw.
type Report struct {
	LiveRefs     int   // pairs that the API state names
	Refs         int   // records at the start
	RemovedRefs  int   // records removed
	Blobs        int   // blobs in the store
	BlobBytes    int64 // their size
	Tombstoned   int   // tombstones written
	DeletedBlobs int   // blobs deleted, tombstones of blobs that were gone included
	DeletedBytes int64 // their size
	// GarbageRefs, GarbageBlobs and GarbageBytes are what is left that the API state does not name: what goes
	// in time if that stays as it is. What was stored a moment ago is among it until a status names it, and so is
	// what a round that was held would have removed.
	GarbageRefs  int
	GarbageBlobs int
	GarbageBytes int64
	// Missing are pairs that the API state names and that have a record here and no blob, ordered; or the
	// bundle was deleted while the round ran.
	Missing []Pair
	// Unrecorded are pairs that the API state names and that have no record here, ordered: those of other stores,
	// and what has lost its record.
	Unrecorded []Pair
	// Looked says whether the round came so far that it knows Missing and Unrecorded.
	Looked bool
	// Failures counts the single steps that failed and are tried again next time; Errors
	// holds the first of them.
	Failures int
	Errors   []error
}

// Collector collects one store.
type Collector struct {
	cfg     Config
	trigger chan struct{}

	mu           sync.Mutex // held by a round
	suspectSince time.Time  // zero: the last round was not suspicious
}

// New checks the configuration.
func New(cfg Config) (*Collector, error) {
	switch {
	case cfg.StoreName == "" || cfg.Store == nil || cfg.Records == nil || cfg.Live == nil || cfg.Now == nil:
		return nil, errors.New("collector: StoreName, Store, Records, Live and Now are required")
	case cfg.Grace <= 0 || cfg.Hold <= 0 || cfg.HoldAbove < 0:
		return nil, errors.New("collector: Grace and Hold must be positive, HoldAbove not negative")
	}
	return &Collector{cfg: cfg, trigger: make(chan struct{}, 1)}, nil
}

// Collect does one round. An error ends the round where it is; the Report says
// what was done before. Rounds of one Collector follow each other.
func (c *Collector) Collect(ctx context.Context) (Report, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &round{Config: c.cfg, since: c.suspectSince}
	err := r.run(ctx)
	c.suspectSince = r.since
	if !r.suspicious || err != nil && !errors.Is(err, ErrHeld) {
		c.suspectSince = time.Time{}
	}
	if err != nil {
		return r.report, fmt.Errorf("collect content of store %s: %w", c.cfg.StoreName, err)
	}
	return r.report, nil
}

// Trigger asks for a round of Run without waiting for the interval. Several asked for
// during one round are one.
func (c *Collector) Trigger() {
	select {
	case c.trigger <- struct{}{}:
	default:
	}
}

// Run does rounds until ctx ends, whose error it returns. A round comes after about
// a tenth of the interval, and then an interval, give or take a tenth, after the last.
// What looked lost in an earlier Run may have been mended and lost again since, so it does not count.
func (c *Collector) Run(ctx context.Context, interval time.Duration) error {
	c.mu.Lock()
	c.suspectSince = time.Time{}
	c.mu.Unlock()
	timer := time.NewTimer(jitter(interval / 10))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.trigger:
		case <-timer.C:
		}
		report, err := c.Collect(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if c.cfg.Observe != nil {
			c.cfg.Observe(report, err)
		}
		timer.Reset(jitter(interval))
	}
}

// jitter keeps collectors that started together from working together.
func jitter(d time.Duration) time.Duration {
	tenth := int64(d / 10)
	return d - time.Duration(tenth) + time.Duration(rand.Int64N(2*tenth+1))
}
