// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"rukpak.io/apiserver/pkg/content"
)

// Marks keep a mark: a store's, or that of an object in the cluster.
type Marks interface {
	// ReadMark returns nil if there is none.
	ReadMark(ctx context.Context) ([]byte, error)
	// WriteMark replaces it in one step and lastingly.
	WriteMark(ctx context.Context, mark []byte) error
}

// Store is what a Guard needs of a content.Store.
type Store interface {
	Marks
	Walk(ctx context.Context, fn func(content.Info) error) error
}

// Config is what belongs together. Every field but Cluster, ClusterTitle, Accept and Observe is required.
type Config struct {
	// KV is the etcd. Get and Txn are used of it.
	KV clientv3.KV
	// Prefix is the folder of the record, and Objects the prefix of the API's objects.
	Prefix, Objects string
	// Stores are the content stores by name.
	Stores map[string]Store
	// Referred says whether etcd names content of a store.
	Referred func(ctx context.Context, store string) (bool, error)
	// Cluster keeps the mark of the cluster, which ClusterTitle calls by its name. Without a cluster it is nil.
	Cluster      Marks
	ClusterTitle string
	// Accept is the token of a loss that is accepted.
	Accept string
	Now    func() time.Time
	// Observe is called after each check: with the error of Err, and with what went wrong and is tried again.
	Observe func(verdict, trouble error)
}

const (
	// interval is the pause between two looks of Run; every checkEvery-th one is a check.
	interval   = 2 * time.Second
	checkEvery = 15
	// renewInterval and sweepInterval are the shortest times between renewals, the latter before a sweep.
	renewInterval = time.Minute
	sweepInterval = 10 * time.Second
	// acceptHold is how long nothing is swept after a loss was accepted.
	acceptHold = 24 * time.Hour
)

// ErrHold is the error of Sweep while nothing is swept because a loss was accepted lately.
var ErrHold = errors.New("a loss of data was accepted lately")

// Guard knows whether an instance fits together. It is safe for use by many goroutines.
type Guard struct {
	cfg Config
	key string

	checking sync.Mutex   // held by a check
	begun    atomic.Int64 // how many checks have begun; written with checking held
	verified bool         // by a check of this process, at some time; of checking
	seen     *view        // what the latest check found to fit together, nil if it could not see that; of checking

	mu       sync.Mutex
	err      error
	changed  chan struct{} // closed when err changes
	instance string        // as of the latest check that found no disagreement
	sequence int64
}

// New returns a guard that has not looked yet: Err is an Unverified until Check.
func New(cfg Config) (*Guard, error) {
	if cfg.KV == nil || cfg.Prefix == "" || cfg.Objects == "" || len(cfg.Stores) == 0 || cfg.Referred == nil || cfg.Now == nil {
		return nil, errors.New("instance: KV, Prefix, Objects, Stores, Referred and Now are required")
	}
	return &Guard{
		cfg: cfg, key: strings.TrimSuffix(cfg.Prefix, "/") + "/instance",
		err: &Unverified{Err: errors.New("it has not been looked at")}, changed: make(chan struct{}),
	}, nil
}

// Err is nil while the instance fits together. Else it is a *Disagreement, or an *Unverified.
func (g *Guard) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// Wait returns when Err is nil, or ctx ends, whose error it returns.
func (g *Guard) Wait(ctx context.Context) error {
	for {
		g.mu.Lock()
		err, changed := g.err, g.changed
		g.mu.Unlock()
		if err == nil {
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// Check looks whether all fits together, finishes what a process left unfinished, and renews the marks if etcd has
// changed. It returns what Err does then.
func (g *Guard) Check(ctx context.Context) error { return g.check(ctx, 0) }

// Fits says whether what a store lacks is no mistake: nil after a look that saw that all fits together, the store's mark included.
// Without a name it needs none of them. It renews no mark before its time, and calls that wait for a look share the next one:
// so it can be asked for each of many objects.
func (g *Guard) Fits(ctx context.Context, store string) error {
	asked := g.begun.Load()
	g.checking.Lock()
	defer g.checking.Unlock()
	err := g.Err()
	if g.begun.Load() == asked {
		_, err = g.decide(ctx, renewInterval)
	}
	if err != nil {
		return err
	}
	return g.seen.shows(store)
}

// shows says whether a look saw that all fits together, the mark of a store included.
func (v *view) shows(store string) error {
	if v == nil {
		return errors.New("whether the content belongs to this server cannot be seen at present")
	}
	if err := v.unread(func(p *place) bool { return p.name == storePrefix+store }); err != nil {
		return fmt.Errorf("whose the content is cannot be seen: %w", err)
	}
	return nil
}

// Run keeps Err up to date until ctx ends: it looks at etcd every other second, and at the places twice a minute, or
// every other second too while something disagrees.
func (g *Guard) Run(ctx context.Context) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// Whoever wants to know the verdict asks Err.
		if g.Err() == nil && n%checkEvery != 0 {
			_ = g.Confirm(ctx)
		} else {
			_ = g.check(ctx, renewInterval)
		}
	}
}

// Sweep says whether content of a store may be deleted: nil after a check that read the store's mark, and renewed the
// marks if etcd has changed, so that an etcd of before is noticed. ErrHold while it has to wait.
func (g *Guard) Sweep(ctx context.Context, store string) error {
	v, err := g.checked(ctx, sweepInterval)
	if err != nil {
		return err
	}
	if err := v.shows(store); err != nil {
		return err
	}
	return v.record.hold(g.cfg.Now())
}

// hold is ErrHold while nothing is deleted because a loss was accepted lately.
func (r *record) hold(now time.Time) error {
	if r.Accepted == nil {
		return nil
	}
	if until := r.Accepted.Time.Add(acceptHold); now.Before(until) {
		return fmt.Errorf("%w: nothing is deleted before %s", ErrHold, clock(until))
	}
	return nil
}

// Confirm is a quick look whether etcd still is the one of the latest check; when it is not, a check decides. It is
// for answers that do harm if they are wrong, such as that an object is not there.
func (g *Guard) Confirm(ctx context.Context) error {
	g.mu.Lock()
	err, instance, sequence := g.err, g.instance, g.sequence
	g.mu.Unlock()
	if err != nil {
		return err
	}
	var v view
	if err := g.readRecord(ctx, &v); err != nil {
		return &Unverified{Err: err}
	}
	if v.record != nil && v.record.Instance == instance && v.record.Sequence >= sequence {
		return nil
	}
	seen, err := g.checked(ctx, renewInterval)
	if err == nil && seen == nil {
		return &Unverified{Err: errors.New("etcd is not as it was, and what belongs to it cannot be seen")}
	}
	return err
}

func (g *Guard) check(ctx context.Context, renewAfter time.Duration) error {
	_, err := g.checked(ctx, renewAfter)
	return err
}

// turns is how often a check looks again because something changed under its eyes.
const turns = 10

// checked returns the view that was found to fit together, or nil if this could not be seen and the latest verdict holds.
func (g *Guard) checked(ctx context.Context, renewAfter time.Duration) (*view, error) {
	g.checking.Lock()
	defer g.checking.Unlock()
	return g.decide(ctx, renewAfter)
}

// decide is checked, for who holds checking.
func (g *Guard) decide(ctx context.Context, renewAfter time.Duration) (*view, error) {
	g.begun.Add(1)
	g.seen = nil
	var before []Finding
	for range turns {
		v, err := g.look(ctx)
		if err != nil {
			return nil, g.unknown(err)
		}
		found := v.judge()
		if len(found) > 0 {
			if !slices.Equal(found, before) {
				before = found
				continue
			}
			accepted, err := g.refuse(ctx, v, found)
			if err != nil {
				return nil, err
			}
			if accepted {
				continue
			}
		}
		before = nil
		if err := v.undecided(g.verified); err != nil {
			return nil, g.unknown(err)
		}
		if v.record == nil {
			if err := g.create(ctx, v); err != nil {
				return nil, g.unknown(err)
			}
			continue
		}
		var trouble error
		if v.unfinished() || v.due(g.cfg.Now(), renewAfter) {
			trouble = g.renew(ctx, v)
		}
		g.fits(v, trouble)
		g.seen = v
		return v, nil
	}
	return nil, g.unknown(errors.New("it changes all the time"))
}

// undecided is an error while too little can be read to say that nothing disagrees. What was seen once to be this
// server's, and cannot be read now, is not the reason to stop.
func (v *view) undecided(verified bool) error {
	return v.unread(func(p *place) bool { return v.record == nil || p.store == nil && !verified })
}

// refuse publishes a disagreement, or accepts it when that was asked for.
func (g *Guard) refuse(ctx context.Context, v *view, found []Finding) (accepted bool, _ error) {
	d := &Disagreement{Findings: found, Token: token(found), Since: g.cfg.Now()}
	if g.cfg.Accept == d.Token {
		if err := v.unread(func(*place) bool { return true }); err != nil {
			return false, g.publish(d, fmt.Errorf("a loss is accepted when all places can be read: %w", err))
		}
		if err := g.accept(ctx, v, d.Token); err != nil {
			return false, g.publish(d, err)
		}
		return true, nil
	}
	var old *Disagreement
	if errors.As(g.Err(), &old) && old.Token == d.Token {
		d.Since = old.Since
	}
	return false, g.publish(d, nil)
}

// unknown keeps the latest verdict while nothing can be seen.
func (g *Guard) unknown(err error) error {
	last := g.Err()
	var u *Unverified
	if errors.As(last, &u) {
		last = &Unverified{Err: err}
	}
	return g.publish(last, err)
}

func (g *Guard) fits(v *view, trouble error) {
	g.verified = true
	g.mu.Lock()
	g.instance, g.sequence = v.record.Instance, v.record.Sequence
	g.mu.Unlock()
	_ = g.publish(nil, trouble)
}

// publish sets what Err returns, and returns it.
func (g *Guard) publish(verdict, trouble error) error {
	g.mu.Lock()
	g.err = verdict
	close(g.changed)
	g.changed = make(chan struct{})
	g.mu.Unlock()
	if g.cfg.Observe != nil {
		g.cfg.Observe(verdict, trouble)
	}
	return verdict
}
