// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Mark is what stands in a place.
type Mark struct {
	Instance string    `json:"instance"`
	Place    string    `json:"place"`
	Sequence int64     `json:"sequence"`
	Stamp    string    `json:"stamp"`
	Time     time.Time `json:"time"`
}

// parseMark reads a mark. One that makes no sense is somebody else's, known by its hash.
func parseMark(raw []byte) *Mark {
	if len(raw) == 0 {
		return nil
	}
	var m Mark
	if err := json.Unmarshal(raw, &m); err != nil || m.Instance == "" || m.Stamp == "" {
		hash := sha256.Sum256(raw)
		return &Mark{Stamp: hex.EncodeToString(hash[:])}
	}
	return &m
}

// record is what stands in etcd.
type record struct {
	Instance string           `json:"instance"`
	Sequence int64            `json:"sequence"` // of the latest renewal
	Time     time.Time        `json:"time"`     // of the latest renewal
	Places   map[string]given `json:"places"`   // also of stores that are not configured at present
	Accepted *acceptance      `json:"accepted,omitempty"`
}

// given is what a place was given.
type given struct {
	Marked bool    `json:"marked"` // a mark of this record was seen or written there
	Issued []issue `json:"issued"` // the marks that it may have
}

type issue struct {
	Sequence int64     `json:"sequence"`
	Stamp    string    `json:"stamp"`
	Time     time.Time `json:"time"`
}

// acceptance says which loss was accepted last.
type acceptance struct {
	Token    string    `json:"token"`
	Time     time.Time `json:"time"`
	Previous string    `json:"previous,omitempty"` // the ID before
}

const (
	// lateness is how old a mark is that no slow writer can write any more, the difference of clocks included.
	lateness = 2 * time.Minute
	// spare is how many of the latest stamps stay listed however old they are.
	spare = 2
)

func newID() string { return rand.Text() }

func (g given) find(stamp string) (issue, bool) {
	i := slices.IndexFunc(g.Issued, func(i issue) bool { return i.Stamp == stamp })
	if i < 0 {
		return issue{}, false
	}
	return g.Issued[i], true
}

// trim drops the stamps that the place cannot have any more, seeing the mark that it has.
func (g given) trim(seen *Mark, now time.Time) given {
	var kept []issue
	for i, issued := range g.Issued {
		if seen != nil && issued.Stamp == seen.Stamp || i >= len(g.Issued)-spare || now.Sub(issued.Time) < lateness {
			kept = append(kept, issued)
		}
	}
	return given{Marked: g.Marked, Issued: kept}
}

// latest is when the place was given its latest mark.
func (g given) latest() time.Time {
	if len(g.Issued) == 0 {
		return time.Time{}
	}
	return g.Issued[len(g.Issued)-1].Time
}

func (r *record) clone() *record {
	c := *r
	c.Places = maps.Clone(r.Places)
	if c.Places == nil {
		c.Places = map[string]given{}
	}
	return &c
}

func parseRecord(key string, raw []byte) (*record, error) {
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, fmt.Errorf("key %q: %w", key, err)
	}
	if r.Instance == "" {
		return nil, fmt.Errorf("key %q: it has no instance", key)
	}
	return &r, nil
}
