// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// put replaces the record of a view, and says whether nobody else did meanwhile. v is of the new one then.
func (g *Guard) put(ctx context.Context, v *view, next *record) (bool, error) {
	raw, err := json.Marshal(next)
	if err != nil {
		return false, fmt.Errorf("write the instance to etcd: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	resp, err := g.cfg.KV.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(g.key), "=", v.modRevision)).
		Then(clientv3.OpPut(g.key, string(raw))).
		Commit()
	if err != nil {
		return false, fmt.Errorf("write the instance to etcd: %w", err)
	}
	if resp.Succeeded {
		v.record, v.modRevision, v.revision = next, resp.Header.Revision, resp.Header.Revision
	}
	return resp.Succeeded, nil
}

// create makes the record. It names the places that are to be taken in.
func (g *Guard) create(ctx context.Context, v *view) error {
	next := &record{Instance: newID(), Time: g.cfg.Now().UTC(), Places: map[string]given{}}
	for _, p := range v.places {
		next.Places[p.name] = given{}
	}
	_, err := g.put(ctx, v, next)
	return err
}

// accept makes a new instance of what etcd has. The marks that were found are listed, until a renewal replaces them.
func (g *Guard) accept(ctx context.Context, v *view, token string) error {
	now := g.cfg.Now().UTC()
	next := &record{Places: map[string]given{}}
	if v.record != nil {
		next = v.record.clone()
	}
	next.Accepted = &acceptance{Token: token, Time: now, Previous: next.Instance}
	next.Instance, next.Time = newID(), now
	for _, p := range v.places {
		var known given
		if p.mark != nil {
			next.Sequence = max(next.Sequence, p.mark.Sequence)
			known.Issued = []issue{{Sequence: p.mark.Sequence, Stamp: p.mark.Stamp, Time: now}}
		}
		next.Places[p.name] = known
	}
	_, err := g.put(ctx, v, next)
	return err
}

// renew gives each place that can be read a new mark. When somebody else renews at the same time, it leaves it to them.
func (g *Guard) renew(ctx context.Context, v *view) error {
	now := g.cfg.Now().UTC()
	next := v.record.clone()
	next.Sequence++
	next.Time = now
	marks := map[*place]Mark{}
	for _, p := range v.places {
		if p.err != nil {
			continue
		}
		m := Mark{Instance: next.Instance, Place: p.name, Sequence: next.Sequence, Stamp: newID(), Time: now}
		known := next.Places[p.name].trim(p.mark, now)
		known.Marked = known.Marked || p.mark != nil
		known.Issued = append(known.Issued, issue{Sequence: m.Sequence, Stamp: m.Stamp, Time: m.Time})
		next.Places[p.name] = known
		marks[p] = m
	}
	if ok, err := g.put(ctx, v, next); err != nil || !ok {
		return err
	}
	written, err := v.write(ctx, marks)
	return errors.Join(err, g.note(ctx, v, written))
}

// write writes the marks, and returns which places have theirs.
func (v *view) write(ctx context.Context, marks map[*place]Mark) ([]*place, error) {
	var (
		mu      sync.Mutex
		written []*place
		errs    []error
	)
	v.each(ctx, func(ctx context.Context, p *place) {
		m, ok := marks[p]
		if !ok {
			return
		}
		raw, err := json.Marshal(m)
		if err == nil {
			err = p.marks.WriteMark(ctx, raw)
		}
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			errs = append(errs, fmt.Errorf("mark %s: %w", p.title, err))
			return
		}
		p.mark = &m
		written = append(written, p)
	})
	return written, errors.Join(errs...)
}

// note writes down which places have a mark, where that is new.
func (g *Guard) note(ctx context.Context, v *view, written []*place) error {
	next, changed := v.record.clone(), false
	for _, p := range written {
		if known := next.Places[p.name]; !known.Marked {
			known.Marked, changed = true, true
			next.Places[p.name] = known
		}
	}
	if !changed {
		return nil
	}
	_, err := g.put(ctx, v, next)
	return err
}

// due says whether the marks are to be renewed: when etcd has changed since, and not too soon.
func (v *view) due(now time.Time, after time.Duration) bool {
	age := now.Sub(v.record.Time)
	return v.revision > v.modRevision && (age >= after || age < -lateness)
}
