// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/reference"
)

// Kind says what is wrong.
type Kind string

const (
	// DamagedBlob: the bytes do not have their digest.
	DamagedBlob Kind = "DamagedBlob"
	// UnreadableBlob: the bytes cannot be read.
	UnreadableBlob Kind = "UnreadableBlob"
	// OrphanBlob: nobody has the bytes, for longer than the grace period.
	OrphanBlob Kind = "OrphanBlob"
	// StaleRecord: a record that no bundle names, older than the grace period.
	StaleRecord Kind = "StaleRecord"
	// RecordWithoutBlob: such a record of bytes that are not there.
	RecordWithoutBlob Kind = "RecordWithoutBlob"
	// MissingBlob: a bundle names content whose bytes are not there.
	MissingBlob Kind = "MissingBlob"
	// MissingRecord: a bundle names content that it has no record of, so that it is not served.
	MissingRecord Kind = "MissingRecord"
	// WrongSize: a bundle says another size of its content than the bytes have, so that it is not served.
	WrongSize Kind = "WrongSize"
	// StoreNotConfigured: a bundle names content whose record is of a store that was not given to the check. Whether it is there is not known.
	StoreNotConfigured Kind = "StoreNotConfigured"
)

// Named is content that the status of a bundle names, as its current one or in its history, or that it is to have.
type Named struct {
	BundleUID, Namespace, Name string
	Digest                     string // sha256:HEX
	Size                       int64  // bytes
	// Part means a part of an upload that is under way: its bundle names it not yet. It is nobody's loss if it
	// is missing but that of the client, who is told.
	Part bool
}

// Problem is one thing that is wrong.
type Problem struct {
	Kind   Kind   `json:"kind"`
	Store  string `json:"store,omitempty"`
	Digest string `json:"digest"`
	// Bundle is NAMESPACE/NAME of the bundle that is concerned, if it is one.
	Bundle    string `json:"bundle,omitempty"`
	BundleUID string `json:"bundleUID,omitempty"`
	Size      int64  `json:"size,omitempty"`
	Message   string `json:"message"`
	// Repair is what Repair did: "removed", or why it did nothing.
	Repair string `json:"repair,omitempty"`

	record reference.Record // of a stale one
}

// StoreSummary is what a store holds.
type StoreSummary struct {
	Name    string `json:"name"`
	Blobs   int    `json:"blobs"`
	Bytes   int64  `json:"bytes"`
	Records int    `json:"records"`
	// Garbage counts the blobs that nobody has and that are not old enough to be a problem.
	Garbage int `json:"garbage"`
}

// Report is what Check found.
type Report struct {
	Stores []StoreSummary `json:"stores"`
	// Contents counts the pairs of bundle and content, parts of uploads that are under way included.
	Contents int       `json:"contents"`
	Problems []Problem `json:"problems"`

	named int // of Contents, those that bundles name
}

// Checker compares content stores with the records of them and with what bundles name. All fields but Pace are
// required.
type Checker struct {
	// Stores are the content stores by the names that records use.
	Stores  map[string]Store
	Records *reference.Records
	// Named reads what the bundles name, as it is when it is called.
	Named func(context.Context) ([]Named, error)
	// Grace is how old what nobody names must be to be a problem: longer than any transfer.
	Grace time.Duration
	Pace  *Pace
	// Progress is called now and then: so many blobs of all of a store are verified.
	Progress func(store string, done, all int)
	Now      func() time.Time
}

// state is what a check has read.
type state struct {
	blobs   map[string]map[string]content.Info // by store and digest
	records map[string][]reference.Record      // by store
	recs    map[string]map[pair]bool           // the same, to look up
	others  map[pair]string                    // records of other stores than those of the Checker, with their names
	tombs   map[string]map[string]reference.Tombstone
	named   []Named
	live    map[pair]Named
	digests map[string]bool // that are named
}

type pair struct{ uid, digest string }

// Check reads all content and compares. Servers may run meanwhile if they share the stores: what changes while it
// reads is no problem, since blobs are listed before records, and what is missing is looked for twice.
func (c *Checker) Check(ctx context.Context) (*Report, error) {
	report := &Report{Problems: []Problem{}}
	s := &state{blobs: map[string]map[string]content.Info{}}
	for _, store := range slices.Sorted(maps.Keys(c.Stores)) {
		if err := c.readBlobs(ctx, store, s, report); err != nil {
			return nil, err
		}
	}
	if err := c.readRecords(ctx, s); err != nil {
		return nil, err
	}
	report.Contents = len(s.live)
	for _, n := range s.live {
		if !n.Part {
			report.named++
		}
	}
	for i := range report.Stores {
		sum := &report.Stores[i]
		sum.Records = len(s.records[sum.Name])
		c.findOrphans(s, sum, report)
		c.findStale(s, sum.Name, report)
	}
	c.nameVictims(s, report)
	missing, err := c.findMissing(ctx, s)
	if err != nil {
		return nil, err
	}
	report.Problems = append(report.Problems, missing...)
	slices.SortStableFunc(report.Problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Store, b.Store), cmp.Compare(a.Digest, b.Digest), cmp.Compare(a.Bundle, b.Bundle))
	})
	return report, nil
}

// readBlobs lists the blobs of a store and reads each.
func (c *Checker) readBlobs(ctx context.Context, name string, s *state, report *Report) error {
	store, blobs := c.Stores[name], map[string]content.Info{}
	sum := StoreSummary{Name: name}
	err := store.Walk(ctx, func(info content.Info) error {
		blobs[info.Digest] = info
		sum.Blobs++
		sum.Bytes += info.Size
		return nil
	})
	if err != nil {
		return fmt.Errorf("check store %s: %w", name, err)
	}
	s.blobs[name] = blobs
	for i, digest := range slices.Sorted(maps.Keys(blobs)) {
		c.Progress(name, i, len(blobs))
		_, err := Blob(ctx, store, digest, c.Pace)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			continue
		case errors.Is(err, content.ErrNotFound):
			delete(blobs, digest) // deleted since the listing
			continue
		}
		p := Problem{Kind: UnreadableBlob, Store: name, Digest: digest, Size: blobs[digest].Size, Message: err.Error()}
		if errors.Is(err, ErrDamaged) {
			p.Kind = DamagedBlob
		}
		report.Problems = append(report.Problems, p)
	}
	c.Progress(name, len(blobs), len(blobs))
	report.Stores = append(report.Stores, sum)
	return nil
}

// readRecords reads what etcd has: bundles first, since a record is written before the bundle names it.
func (c *Checker) readRecords(ctx context.Context, s *state) (err error) {
	if s.named, err = c.Named(ctx); err != nil {
		return fmt.Errorf("read the bundles: %w", err)
	}
	s.live, s.digests = map[pair]Named{}, map[string]bool{}
	for _, n := range s.named {
		s.live[pair{n.BundleUID, n.Digest}] = n
		s.digests[n.Digest] = true
	}
	s.records, s.recs, s.tombs = map[string][]reference.Record{}, map[string]map[pair]bool{}, map[string]map[string]reference.Tombstone{}
	for store := range c.Stores {
		s.recs[store], s.tombs[store] = map[pair]bool{}, map[string]reference.Tombstone{}
		for rec, err := range c.Records.List(ctx, store) {
			if err != nil {
				return err
			}
			s.records[store] = append(s.records[store], rec)
			s.recs[store][pair{rec.BundleUID, rec.Digest}] = true
		}
		for tomb, err := range c.Records.Tombstones(ctx, store) {
			if err != nil {
				return err
			}
			s.tombs[store][tomb.Digest] = tomb
		}
	}
	return c.readOthers(ctx, s)
}

// readOthers reads the records of stores that are not to be checked.
func (c *Checker) readOthers(ctx context.Context, s *state) error {
	s.others = map[pair]string{}
	stores, err := c.Records.Stores(ctx)
	if err != nil {
		return err
	}
	for _, store := range stores {
		if c.Stores[store] != nil {
			continue
		}
		for rec, err := range c.Records.List(ctx, store) {
			if err != nil {
				return err
			}
			s.others[pair{rec.BundleUID, rec.Digest}] = store
		}
	}
	return nil
}

// findOrphans finds the blobs that nobody has.
func (c *Checker) findOrphans(s *state, sum *StoreSummary, report *Report) {
	recorded := map[string]bool{}
	for _, rec := range s.records[sum.Name] {
		recorded[rec.Digest] = true
	}
	for digest, info := range s.blobs[sum.Name] {
		if recorded[digest] || s.digests[digest] {
			continue
		}
		since := info.ModTime
		if tomb, ok := s.tombs[sum.Name][digest]; ok {
			since = tomb.Time
		}
		if c.Now().Sub(since) <= c.Grace {
			sum.Garbage++
			continue
		}
		report.Problems = append(report.Problems, Problem{
			Kind: OrphanBlob, Store: sum.Name, Digest: digest, Size: info.Size, Message: "no bundle has it",
		})
	}
}

// findStale finds the records that no bundle names.
func (c *Checker) findStale(s *state, store string, report *Report) {
	uids := map[string]bool{}
	for _, n := range s.named {
		uids[n.BundleUID] = true
	}
	for _, rec := range s.records[store] {
		if _, ok := s.live[pair{rec.BundleUID, rec.Digest}]; ok || c.Now().Sub(rec.Time) <= c.Grace {
			continue
		}
		p := Problem{Kind: StaleRecord, Store: store, Digest: rec.Digest, Bundle: rec.Namespace + "/" + rec.Name, BundleUID: rec.BundleUID, record: rec}
		p.Message = "the bundle is gone, or has no content"
		if uids[rec.BundleUID] {
			p.Message = "the bundle does not name it any more"
		}
		if _, ok := s.blobs[store][rec.Digest]; !ok {
			p.Kind = RecordWithoutBlob
		}
		report.Problems = append(report.Problems, p)
	}
}

// maxVictims is how many bundles a message names.
const maxVictims = 5

// nameVictims says whose the blobs are that cannot be served.
func (c *Checker) nameVictims(s *state, report *Report) {
	for i := range report.Problems {
		p := &report.Problems[i]
		if p.Kind != DamagedBlob && p.Kind != UnreadableBlob {
			continue
		}
		var victims []string
		for _, n := range s.named {
			if n.Digest == p.Digest && !n.Part && s.recs[p.Store][pair{n.BundleUID, n.Digest}] {
				victims = append(victims, n.Namespace+"/"+n.Name)
			}
		}
		slices.Sort(victims)
		if more := len(victims) - maxVictims; more > 0 {
			victims = append(victims[:maxVictims], fmt.Sprintf("%d more", more))
		}
		if len(victims) > 0 {
			p.Message += fmt.Sprintf("; bundles that have it: %v", victims)
		}
	}
}

// findMissing finds the content that bundles name and that is not served.
func (c *Checker) findMissing(ctx context.Context, s *state) ([]Problem, error) {
	var found []Problem
	for _, n := range s.named {
		if n.Part {
			continue
		}
		p, err := c.look(ctx, s, n)
		if err != nil {
			return nil, err
		}
		if p != nil {
			found = append(found, *p)
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	// A bundle may have been deleted, or have got other content, since it was read.
	again, err := c.Named(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the bundles again: %w", err)
	}
	still := map[pair]bool{}
	for _, n := range again {
		still[pair{n.BundleUID, n.Digest}] = true
	}
	return slices.DeleteFunc(found, func(p Problem) bool { return !still[pair{p.BundleUID, p.Digest}] }), nil
}

// look returns what is wrong with a content that a bundle names, nil if it is served as far as that can be seen.
func (c *Checker) look(ctx context.Context, s *state, n Named) (*Problem, error) {
	p := &Problem{Digest: n.Digest, Bundle: n.Namespace + "/" + n.Name, BundleUID: n.BundleUID, Size: n.Size}
	for _, store := range slices.Sorted(maps.Keys(c.Stores)) {
		if !s.recs[store][pair{n.BundleUID, n.Digest}] {
			continue
		}
		p.Store = store
		info, ok := s.blobs[store][n.Digest]
		if !ok {
			// It may have been stored since the listing.
			var err error
			info, err = c.Stores[store].Stat(ctx, n.Digest)
			if errors.Is(err, content.ErrNotFound) {
				p.Kind, p.Message = MissingBlob, "the stored bytes are gone"
				return p, nil
			}
			if err != nil {
				return nil, err
			}
		}
		if info.Size != n.Size {
			p.Kind, p.Message = WrongSize, fmt.Sprintf("%d bytes are stored, the bundle says %d", info.Size, n.Size)
			return p, nil
		}
		return nil, nil
	}
	if store, ok := s.others[pair{n.BundleUID, n.Digest}]; ok {
		p.Kind, p.Store, p.Message = StoreNotConfigured, store, "its store is not configured here, so whether it is there is not known"
		return p, nil
	}
	for _, store := range slices.Sorted(maps.Keys(c.Stores)) {
		if _, ok := s.blobs[store][n.Digest]; ok {
			p.Kind, p.Message = MissingRecord, "the bytes are in store "+store+", but the bundle has no record of them"
			return p, nil
		}
	}
	p.Kind, p.Message = MissingBlob, "there is neither a record nor any bytes"
	return p, nil
}
