// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/reference"
	"rukpak.io/apiserver/pkg/content/upload"
	"rukpak.io/apiserver/pkg/failpoint"
)

// maxErrors is how many errors of single steps a report holds.
const maxErrors = 20

// round is one round, and what it knows.
type round struct {
	Config
	report Report
	since  time.Time // of the first suspicious round of those that were so without a break

	now         time.Time
	live        map[Pair]struct{}
	liveDigests map[string]struct{}
	named       int // of live, those that bundles name: parts of uploads say nothing of the API state
	tombs       []reference.Tombstone
	tombSizes   map[string]int64 // of the blobs that have one of tombs; -1 if there is no blob
	stale       []reference.Record
	ahead       []reference.Record // not live, with times that cannot be right
	recorded    map[string]int     // records a digest
	readable    map[Pair]struct{}  // live pairs that have a record
	orphans     []content.Info
	suspicious  bool
}

func (r *round) run(ctx context.Context) error {
	r.now = r.Now() // before the API state is read: what is older than Grace now is in that state or never will be
	for _, step := range []func(context.Context) error{
		r.readTombstones, r.takeBack, r.readLive, r.readRecords, r.renew, r.removeRecords, r.readBlobs, r.mark, r.sweep,
	} {
		if err := step(ctx); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

func (r *round) readLive(ctx context.Context) error {
	live, err := r.Live(ctx)
	if err != nil {
		return fmt.Errorf("read the API state: %w", err)
	}
	r.live, r.liveDigests = live, make(map[string]struct{}, len(live))
	for pair := range live {
		r.liveDigests[pair.Digest] = struct{}{}
		if !strings.HasPrefix(pair.BundleUID, upload.HolderPrefix) {
			r.named++
		}
	}
	r.report.LiveRefs = len(live)
	failpoint.Hit("collect/after-live")
	return nil
}

func (r *round) readTombstones(ctx context.Context) error {
	r.tombSizes = map[string]int64{}
	for tomb, err := range r.Records.Tombstones(ctx, r.StoreName) {
		if err != nil {
			return err
		}
		r.tombs = append(r.tombs, tomb)
		r.tombSizes[tomb.Digest] = -1
	}
	return nil
}

func (r *round) readRecords(ctx context.Context) error {
	r.recorded, r.readable = map[string]int{}, map[Pair]struct{}{}
	for rec, err := range r.Records.List(ctx, r.StoreName) {
		if err != nil {
			return err
		}
		r.report.Refs++
		r.recorded[rec.Digest]++
		pair := Pair{BundleUID: rec.BundleUID, Digest: rec.Digest}
		if _, ok := r.live[pair]; ok {
			r.readable[pair] = struct{}{}
			continue
		}
		r.report.GarbageRefs++
		switch age := r.now.Sub(rec.Time); {
		case age > r.Grace:
			r.stale = append(r.stale, rec)
		case age < -r.Grace:
			r.ahead = append(r.ahead, rec)
		}
	}
	return nil
}

// takeBack ends the deletions that came to nothing, those of damaged blobs among them. Nobody could store the content until
// then. It removes no content, so it does not wait for a state that can be read, nor for a round that is not held.
func (r *round) takeBack(ctx context.Context) error {
	var left []reference.Tombstone
	for _, tomb := range r.tombs {
		if !r.over(tomb) {
			left = append(left, tomb)
			continue
		}
		pending, ok, err := r.Records.TakeBack(ctx, tomb)
		if r.failed(ctx, err) {
			return ctx.Err()
		}
		if ok {
			left = append(left, pending)
		} else {
			delete(r.tombSizes, tomb.Digest)
		}
	}
	r.tombs = left
	return nil
}

// renew gives the present time to records that would be young for too long. It removes nothing either.
func (r *round) renew(ctx context.Context) error {
	for _, rec := range r.ahead {
		if _, err := r.Records.Renew(ctx, rec); r.failed(ctx, err) {
			return ctx.Err()
		}
	}
	return nil
}

func (r *round) removeRecords(ctx context.Context) error {
	n, total := len(r.stale), r.report.Refs
	if err := r.hold(n > 0 && r.named == 0 || r.most(n, total), "references", n, total); err != nil {
		// Nothing is removed, but the report says what there is.
		return errors.Join(err, r.readBlobs(ctx))
	}
	for _, rec := range r.stale {
		removed, err := r.Records.RemoveUnchanged(ctx, rec)
		if r.failed(ctx, err) {
			return ctx.Err()
		}
		if removed {
			r.report.RemovedRefs++
			r.report.GarbageRefs--
			r.recorded[rec.Digest]--
			failpoint.Hit("collect/after-remove-record")
		}
	}
	return nil
}

// readBlobs finds the blobs without records or tombstone, and the live pairs without record or blob.
func (r *round) readBlobs(ctx context.Context) error {
	stored := make(map[string]struct{}, len(r.liveDigests))
	err := r.Store.Walk(ctx, func(info content.Info) error {
		r.report.Blobs++
		r.report.BlobBytes += info.Size
		if _, ok := r.liveDigests[info.Digest]; ok {
			stored[info.Digest] = struct{}{}
			return nil
		}
		r.report.GarbageBlobs++
		r.report.GarbageBytes += info.Size
		if _, ok := r.tombSizes[info.Digest]; ok {
			r.tombSizes[info.Digest] = info.Size
		} else if r.recorded[info.Digest] == 0 {
			r.orphans = append(r.orphans, info)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for pair := range r.live {
		_, hasRecord := r.readable[pair]
		_, hasBlob := stored[pair.Digest]
		switch {
		case !hasRecord:
			r.report.Unrecorded = append(r.report.Unrecorded, pair)
		case !hasBlob:
			r.report.Missing = append(r.report.Missing, pair)
		}
	}
	slices.SortFunc(r.report.Missing, ComparePairs)
	slices.SortFunc(r.report.Unrecorded, ComparePairs)
	r.report.Looked = true
	return nil
}

func (r *round) mark(ctx context.Context) error {
	n, total := len(r.orphans), r.report.Blobs
	if err := r.hold(r.most(n, total), "blobs", n, total); err != nil {
		return err
	}
	for _, info := range r.orphans {
		marked, err := r.Records.Mark(ctx, r.StoreName, info.Digest)
		if r.failed(ctx, err) {
			return ctx.Err()
		}
		if marked {
			r.report.Tombstoned++
			failpoint.Hit("collect/after-mark")
		}
	}
	return nil
}

func (r *round) sweep(ctx context.Context) error {
	for _, tomb := range r.tombs {
		age := r.now.Sub(tomb.Time)
		if _, ok := r.liveDigests[tomb.Digest]; ok {
			continue // it has lost its records, as Unrecorded says, or a damaged blob of it was being removed
		}
		if tomb.State == reference.Pending && age > r.Grace && r.failed(ctx, r.delete(ctx, tomb)) {
			return ctx.Err()
		}
	}
	return nil
}

func (r *round) delete(ctx context.Context, tomb reference.Tombstone) error {
	ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	tomb, ok, err := r.Records.StartDeleting(ctx, tomb)
	if err != nil || !ok {
		return err
	}
	failpoint.Hit("collect/after-deleting")
	if err := r.Store.Delete(ctx, tomb.Digest); err != nil {
		return err // what was asked of the store may still be on its way, so that it is taken back later
	}
	failpoint.Hit("collect/after-delete")
	r.report.DeletedBlobs++
	if size := r.tombSizes[tomb.Digest]; size >= 0 {
		r.report.DeletedBytes += size
		r.report.GarbageBlobs--
		r.report.GarbageBytes -= size
	}
	if _, err := r.Records.Unmark(ctx, tomb); err != nil {
		return err
	}
	failpoint.Hit("collect/after-unmark")
	return nil
}

// over says whether a tombstone is one of a deletion that failed or whose process has ended, or has a time that cannot be right.
func (r *round) over(tomb reference.Tombstone) bool {
	age := r.now.Sub(tomb.Time)
	return tomb.State == reference.Deleting && age > takeBack || age < -r.Grace
}

// most says whether so many are to go that it is suspicious.
func (r *round) most(n, total int) bool { return n > r.HoldAbove && 2*n > total }

// hold ends the round if it is suspicious and was not so for long enough.
func (r *round) hold(suspicious bool, what string, n, total int) error {
	if !suspicious {
		return nil
	}
	r.suspicious = true
	if r.since.IsZero() {
		r.since = r.now
	}
	if r.now.Sub(r.since) > r.Hold {
		return nil
	}
	return fmt.Errorf("%w: it names %d contents, and %d of %d %s would go; they do if it is still so at %s",
		ErrHeld, r.named, n, total, what, r.since.Add(r.Hold).UTC().Format(time.RFC3339))
}

// failed notes the error of a single step, and says whether ctx is over.
func (r *round) failed(ctx context.Context, err error) bool {
	if err != nil {
		r.report.Failures++
		if len(r.report.Errors) < maxErrors {
			r.report.Errors = append(r.report.Errors, err)
		}
	}
	return ctx.Err() != nil
}
