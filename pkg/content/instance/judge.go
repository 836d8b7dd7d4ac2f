// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Reason is the kind of a disagreement; see the package for what each means.
type Reason string

const (
	EtcdUnmarked Reason = "EtcdUnmarked"
	EtcdOlder    Reason = "EtcdOlder"
	Foreign      Reason = "Foreign"
	PlaceOlder   Reason = "PlaceOlder"
	Misplaced    Reason = "Misplaced"
	Diverged     Reason = "Diverged"
	Unmarked     Reason = "Unmarked"
	Unclaimed    Reason = "Unclaimed"
)

// Finding is one disagreement of a place with etcd.
type Finding struct {
	Place   string // cluster, or store/NAME
	Reason  Reason
	Message string
	facts   string
}

// Disagreement is the error of an instance that does not fit together.
type Disagreement struct {
	Findings []Finding // ordered by place; at least one
	Token    string    // accepts exactly this
	Since    time.Time // when this process saw it first
}

func (d *Disagreement) Error() string {
	var parts []string
	for _, f := range d.Findings {
		parts = append(parts, f.Message)
	}
	return fmt.Sprintf("etcd and what belongs to it do not fit together: %s (seen first at %s). Until they do, nothing is served, unpacked or deleted. "+
		"Put back what is missing or wrong, and it goes on by itself; or accept the loss with --accept-data-loss=%s, as \"Data loss\" in docs/operating.md explains",
		strings.Join(parts, "; "), clock(d.Since), d.Token)
}

// Unverified is the error of an instance of which it is not known yet whether it fits together.
type Unverified struct{ Err error }

func (u *Unverified) Error() string {
	return fmt.Sprintf("it is not known yet whether etcd and the content stores are those of this server: %v", u.Err)
}

func (u *Unverified) Unwrap() error { return u.Err }

// view is what one look found.
type view struct {
	record      *record // nil if etcd has none
	modRevision int64   // of the record
	revision    int64   // of etcd
	used        bool    // etcd has objects; known if there is no record
	places      []*place
}

// place is a place as a look found it.
type place struct {
	name    string
	title   string // for people
	store   Store  // nil for the cluster
	marks   Marks
	mark    *Mark
	err     error // it could not be read
	empty   bool  // a store without content; known if it has no mark and the record does not know it
	awaited bool  // etcd names content of the store; known as empty is
}

// judge finds what disagrees.
func (v *view) judge() []Finding {
	var found []Finding
	for _, p := range v.places {
		if p.err != nil {
			continue
		}
		var f *Finding
		if v.record == nil {
			f = v.judgeFirst(p)
		} else {
			f = v.record.judge(p)
		}
		if f != nil {
			found = append(found, *f)
		}
	}
	slices.SortFunc(found, func(a, b Finding) int { return cmp.Compare(a.Place, b.Place) })
	return found
}

// judgeFirst judges a place while etcd has no record.
func (v *view) judgeFirst(p *place) *Finding {
	switch {
	case p.mark != nil:
		return p.finding("", EtcdUnmarked, "etcd has no instance ID, but %s belongs to %s: etcd was emptied, replaced, or restored from a copy of before it had one", p.title, p.mark)
	case p.store == nil:
		return nil
	case !p.empty && !v.used:
		return p.finding("", Unclaimed, "%s has content, but etcd has neither an instance ID nor any object: it was emptied or replaced, or the store is another server's", p.title)
	case p.empty && p.awaited:
		return p.finding("", Unmarked, "etcd names content in %s, which is empty: it was emptied or replaced", p.title)
	}
	return nil
}

// judge judges a place by the record.
func (r *record) judge(p *place) *Finding {
	known, ok := r.Places[p.name]
	switch {
	case p.mark == nil && p.store == nil: // the cluster's object is made again where all else fits
		return nil
	case p.mark == nil && known.Marked:
		f := p.finding(r.Instance, Unmarked, "%s has no mark, but was given one at %s: it was emptied or replaced", p.title, clock(known.latest()))
		f.facts += known.Issued[len(known.Issued)-1].Stamp
		return f
	case p.mark == nil && !ok && !p.empty:
		return p.finding(r.Instance, Unclaimed, "%s is new to instance %s, has no mark, and has content: it may be another server's", p.title, r.Instance)
	case p.mark == nil:
		return nil
	}
	if _, ok := known.find(p.mark.Stamp); ok {
		return nil
	}
	switch {
	case p.mark.Instance != r.Instance:
		return p.finding(r.Instance, Foreign, "%s belongs to %s, and etcd to instance %s", p.title, p.mark, r.Instance)
	case p.mark.Place != p.name:
		return p.finding(r.Instance, Misplaced, "%s has the mark of %q: two names lead to one store, or they were exchanged", p.title, p.mark.Place)
	case p.mark.Sequence > r.Sequence:
		return p.finding(r.Instance, EtcdOlder, "etcd is as of %s (renewal %d), and %s has the later mark of %s (renewal %d): etcd was restored from an older copy",
			clock(r.Time), r.Sequence, p.title, clock(p.mark.Time), p.mark.Sequence)
	case len(known.Issued) > 0 && p.mark.Sequence < known.Issued[0].Sequence:
		return p.finding(r.Instance, PlaceOlder, "%s has the mark of %s (renewal %d), and was given a later one at %s: it was restored from an older copy",
			p.title, clock(p.mark.Time), p.mark.Sequence, clock(known.latest()))
	}
	return p.finding(r.Instance, Diverged, "%s has a mark of %s that this etcd did not give: another copy of this etcd is in use with it", p.title, clock(p.mark.Time))
}

// finding makes a finding whose facts are the same wherever and whenever it is found.
func (p *place) finding(instance string, reason Reason, format string, args ...any) *Finding {
	f := &Finding{Place: p.name, Reason: reason, Message: fmt.Sprintf(format, args...)}
	facts := []string{p.name, string(reason), instance}
	if p.mark != nil {
		facts = append(facts, p.mark.Instance, p.mark.Stamp)
	}
	f.facts = strings.Join(facts, " ") + " "
	return f
}

// String describes a mark by its owner.
func (m *Mark) String() string {
	if m.Instance == "" {
		return "something that is no instance of this server"
	}
	return fmt.Sprintf("instance %s (mark of %s)", m.Instance, clock(m.Time))
}

const tokenLength = 16

// token is made from facts, so that it is the same for each replica and for no other loss.
func token(found []Finding) string {
	hash := sha256.New()
	for _, f := range found {
		fmt.Fprintf(hash, "%s\n", f.facts)
	}
	return hex.EncodeToString(hash.Sum(nil))[:tokenLength]
}

// clock writes a time for people.
func clock(t time.Time) string {
	if t.IsZero() {
		return "an unknown time"
	}
	return t.UTC().Format(time.RFC3339)
}

// unread is the error of the places that could not be read.
func (v *view) unread(which func(*place) bool) error {
	for _, p := range v.places {
		if p.err != nil && which(p) {
			return fmt.Errorf("%s: %w", p.title, p.err)
		}
	}
	return nil
}

// unfinished says whether a place that can be read lacks its mark, or the record does not know that it has one.
func (v *view) unfinished() bool {
	return slices.ContainsFunc(v.places, func(p *place) bool {
		return p.err == nil && (p.mark == nil || p.mark.Instance != v.record.Instance || !v.record.Places[p.name].Marked)
	})
}
