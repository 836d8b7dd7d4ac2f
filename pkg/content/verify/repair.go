// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"context"
	"fmt"

	"rukpak.io/apiserver/pkg/content/reference"
)

const (
	// Removed is what Repair says of what it has removed.
	Removed = "removed"
	// holdAbove is how many of a kind may be removed although they are most of all there are.
	holdAbove = 20
)

// Repair mends what it may of a report, and notes in it what it did:
//
//   - damaged blobs are removed, so that their bundles are seen to have lost them and get them from their
//     sources again;
//   - orphans are removed;
//   - records that no bundle names are removed.
//
// Whole content that a bundle names is never removed. Nothing of a kind is removed where that would be more than
// 20 and more than half of all, or where no bundle names any content: then it is the state of the API, or the
// way to the disk, that looks lost.
//
// It takes the state as it is now, not as the report found it, so servers may run meanwhile. An error ends it.
func (c *Checker) Repair(ctx context.Context, report *Report) error {
	held, orphans := c.held(report), map[string][]*Problem{}
	for i := range report.Problems {
		p := &report.Problems[i]
		if p.Repair = held[kindOf(p)]; p.Repair != "" {
			continue
		}
		var err error
		switch p.Kind {
		case DamagedBlob:
			err = c.removeDamaged(ctx, p)
		case StaleRecord, RecordWithoutBlob:
			err = c.removeRecord(ctx, p)
		case OrphanBlob:
			orphans[p.Store] = append(orphans[p.Store], p)
		}
		if err != nil {
			return fmt.Errorf("repair %s %s: %w", p.Kind, p.Digest, err)
		}
	}
	for store, list := range orphans {
		if err := c.removeOrphans(ctx, store, list); err != nil {
			return err
		}
	}
	return nil
}

// repairKind is what is counted together: a kind in a store.
type repairKind struct {
	store string
	kind  Kind
}

func kindOf(p *Problem) repairKind {
	if p.Kind == RecordWithoutBlob {
		return repairKind{p.Store, StaleRecord}
	}
	return repairKind{p.Store, p.Kind}
}

// held says of which kinds nothing may be removed, and why.
func (c *Checker) held(report *Report) map[repairKind]string {
	counts, held := map[repairKind]int{}, map[repairKind]string{}
	for i := range report.Problems {
		counts[kindOf(&report.Problems[i])]++
	}
	for _, sum := range report.Stores {
		for _, kind := range []Kind{DamagedBlob, OrphanBlob, StaleRecord} {
			key, all := repairKind{sum.Name, kind}, sum.Blobs
			if kind == StaleRecord {
				all = sum.Records
			}
			switch n := counts[key]; {
			case n > holdAbove && 2*n > all:
				held[key] = fmt.Sprintf("held: these are %d of %d", n, all)
			case n > 0 && report.named == 0 && kind != DamagedBlob:
				held[key] = "held: no bundle names any content, as if the state of the API was lost"
			}
		}
	}
	return held
}

func (c *Checker) removeDamaged(ctx context.Context, p *Problem) error {
	gone, err := RemoveDamaged(ctx, c.Records, p.Store, c.Stores[p.Store], p.Digest, c.Pace)
	if err != nil {
		return err
	}
	p.Repair = Removed
	if !gone {
		p.Repair = "not needed: it is whole or gone by now"
	}
	return nil
}

func (c *Checker) removeRecord(ctx context.Context, p *Problem) error {
	gone, err := c.Records.RemoveUnchanged(ctx, p.record)
	if err != nil {
		return err
	}
	p.Repair = Removed
	if !gone {
		p.Repair = "not needed: it has changed"
	}
	return nil
}

// removeOrphans removes blobs the way the collector does: a commit of the same bytes either comes before and keeps
// them, or waits and stores them anew.
func (c *Checker) removeOrphans(ctx context.Context, store string, orphans []*Problem) error {
	for _, p := range orphans {
		p.Repair = "not needed: somebody has it by now"
		if _, err := c.Records.Mark(ctx, store, p.Digest); err != nil {
			return fmt.Errorf("repair %s: %w", p.Kind, err)
		}
	}
	tombs := map[string]reference.Tombstone{}
	for tomb, err := range c.Records.Tombstones(ctx, store) {
		if err != nil {
			return fmt.Errorf("repair store %s: %w", store, err)
		}
		tombs[tomb.Digest] = tomb
	}
	for _, p := range orphans {
		tomb, ok := tombs[p.Digest]
		if !ok {
			continue
		}
		if err := c.removeOrphan(ctx, p, tomb); err != nil {
			return fmt.Errorf("repair %s %s: %w", p.Kind, p.Digest, err)
		}
	}
	return nil
}

func (c *Checker) removeOrphan(ctx context.Context, p *Problem, tomb reference.Tombstone) error {
	if tomb.State == reference.Deleting && c.Now().Sub(tomb.Time) <= c.Grace {
		p.Repair = "not needed: it is being removed"
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	tomb, ok, err := c.Records.StartDeleting(limited, tomb)
	if err != nil || !ok {
		return err
	}
	if err := c.Stores[p.Store].Delete(limited, p.Digest); err != nil {
		return err // the collector takes it back
	}
	if _, err := c.Records.Unmark(ctx, tomb); err != nil {
		return err
	}
	p.Repair = Removed
	return nil
}
