// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"rukpak.io/apiserver/pkg/content/etcdtest"
	"rukpak.io/apiserver/pkg/content/instance"
)

// TestDisagreements lets one thing after the other be lost, older or foreign. What does not fit is named; when it is put
// right all fits again; and a loss that is accepted is over, while its token is good for no other.
func TestDisagreements(t *testing.T) {
	client := etcdtest.Start(t)
	for name, test := range map[string]struct {
		before func(w *world) // any instance
		change func(w *world) // what happens while no server runs
		repair func(w *world) // nil: nobody can
		want   string         // empty: all fits
	}{
		"first start":            {},
		"second start":           {before: func(w *world) { w.fits() }},
		"start after use":        {before: func(w *world) { w.fits(); w.work() }},
		"version before, in use": {change: func(w *world) { w.putObject(); w.putBlob("default"); w.putRecord("default") }},
		"version before, etcd emptied": {
			change: func(w *world) { w.putBlob("default") }, repair: func(w *world) { w.putObject() },
			want: "store/default Unclaimed",
		},
		"version before, store emptied": {
			change: func(w *world) { w.putObject(); w.putRecord("default") }, repair: func(w *world) { w.putBlob("default") },
			want: "store/default Unmarked",
		},
		"etcd emptied": {
			before: func(w *world) { w.fits(); w.work(); w.putBlob("default") },
			change: func(w *world) { w.later(w.saveEtcd()); w.emptyEtcd() }, repair: (*world).restore,
			want: "cluster EtcdUnmarked, store/default EtcdUnmarked",
		},
		"etcd from before the marks": {
			before: func(w *world) { w.putObject(); w.putBlob("default"); w.later(w.saveEtcd()); w.fits() },
			change: func(w *world) { back := w.saveEtcd(); w.restore(); w.later(back) }, repair: (*world).restore,
			want: "cluster EtcdUnmarked, store/default EtcdUnmarked",
		},
		"etcd older": {
			before: func(w *world) { w.fits(); w.later(w.saveEtcd()); w.work() },
			change: func(w *world) { back := w.saveEtcd(); w.restore(); w.later(back) }, repair: (*world).restore,
			want: "cluster EtcdOlder, store/default EtcdOlder",
		},
		"etcd foreign": {
			before: func(w *world) { w.fits(); w.work() },
			change: func(w *world) {
				w.later(w.saveEtcd())
				w.emptyEtcd()
				other := newWorld(w.t, w.client, w.prefix)
				other.fits()
				other.work()
			},
			repair: (*world).restore,
			want:   "cluster Foreign, store/default Foreign",
		},
		"store emptied": {
			before: func(w *world) { w.fits(); w.work() },
			change: func(w *world) { w.later(w.saveStore("default")); w.emptyStore("default") }, repair: (*world).restore,
			want: "store/default Unmarked",
		},
		"store emptied right after the first start": {
			before: func(w *world) { w.fits() },
			change: func(w *world) { w.later(w.saveStore("default")); w.emptyStore("default") }, repair: (*world).restore,
			want: "store/default Unmarked",
		},
		"store older": {
			before: func(w *world) {
				w.fits()
				w.later(w.saveStore("default"))
				w.work()
				w.work()
				w.work()
				w.work()
			},
			change: func(w *world) { back := w.saveStore("default"); w.restore(); w.later(back) }, repair: (*world).restore,
			want: "store/default PlaceOlder",
		},
		"store foreign": {
			before: func(w *world) { w.fits(); w.work() },
			change: func(w *world) {
				w.later(w.saveStore("default"))
				other := newWorld(w.t, w.client, w.prefix+"-other")
				other.fits()
				mark, err := other.store("default").ReadMark(w.t.Context())
				w.must(err)
				w.must(w.store("default").WriteMark(w.t.Context(), mark))
			},
			repair: (*world).restore,
			want:   "store/default Foreign",
		},
		"store with a mark that nobody understands": {
			before: func(w *world) { w.fits() },
			change: func(w *world) {
				w.later(w.saveStore("default"))
				w.must(w.store("default").WriteMark(w.t.Context(), []byte("?")))
			}, repair: (*world).restore,
			want: "store/default Foreign",
		},
		"volume with etcd and store emptied": {
			before: func(w *world) { w.fits(); w.work() },
			change: func(w *world) {
				etcd, store := w.saveEtcd(), w.saveStore("default")
				w.later(func() { etcd(); store() })
				w.emptyEtcd()
				w.emptyStore("default")
			},
			repair: (*world).restore,
			want:   "cluster EtcdUnmarked",
		},
		"volume with etcd and store older": {
			before: func(w *world) {
				w.fits()
				etcd, store := w.saveEtcd(), w.saveStore("default")
				w.later(func() { etcd(); store() })
				w.work()
			},
			change: func(w *world) {
				etcd, store := w.saveEtcd(), w.saveStore("default")
				w.restore()
				w.later(func() { etcd(); store() })
			},
			repair: (*world).restore,
			want:   "cluster EtcdOlder",
		},
		"namespace made again": {
			before: func(w *world) { w.fits(); w.work() },
			change: func(w *world) { w.cluster.mark = nil },
		},
		"cluster of another": {
			before: func(w *world) { w.fits() },
			change: func(w *world) {
				w.later(w.saveCluster())
				other := newWorld(w.t, w.client, w.prefix+"-other")
				other.fits()
				w.cluster.mark = other.cluster.mark
			},
			repair: (*world).restore,
			want:   "cluster Foreign",
		},
		"two copies of one etcd on one store": {
			before: func(w *world) { w.fits() },
			change: func(w *world) {
				both := w.saveAll()
				w.work()
				one := w.saveAll()
				both()
				w.work()
				other := w.saveEtcd()
				one()
				w.later(w.saveEtcd())
				other()
			},
			repair: (*world).restore,
			want:   "cluster Diverged, store/default Diverged",
		},
		"new store without content": {
			before: func(w *world) { w.fits() },
			change: func(w *world) { w.names = append(w.names, "second") },
		},
		"new store with content": {
			before: func(w *world) { w.fits() },
			change: func(w *world) { w.names = append(w.names, "second"); w.putBlob("second") },
			repair: func(w *world) { w.emptyStore("second") },
			want:   "store/second Unclaimed",
		},
		"store away for a time": {
			before: func(w *world) {
				w.names = append(w.names, "second")
				w.fits()
				w.names = w.names[:1]
				w.work()
				w.work()
				w.work()
			},
			change: func(w *world) { w.names = append(w.names, "second") },
		},
		"stores exchanged": {
			before: func(w *world) { w.names = append(w.names, "second"); w.fits() },
			change: (*world).exchange, repair: (*world).exchange,
			want: "store/default Misplaced, store/second Misplaced",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, client, "/"+strings.ReplaceAll(name, " ", "-"))
			if test.before != nil {
				test.before(w)
			}
			if test.change != nil {
				test.change(w)
			}
			d, got := w.disagrees()
			if got != test.want {
				t.Fatalf("found %q, want %q", got, test.want)
			}
			if d == nil {
				w.work()
				return
			}
			if again, _ := w.disagrees(); again.Token != d.Token {
				t.Errorf("another process has another token: %s, then %s", d.Token, again.Token)
			}
			lost := w.saveAll()
			test.repair(w)
			w.fits()
			w.work()
			lost()
			acceptOnce(w, d.Token)
		})
	}
}

// acceptOnce accepts a loss, and then loses everything again.
func acceptOnce(w *world, token string) {
	w.t.Helper()
	if err := w.accept("0123456789abcdef"); err == nil {
		w.t.Fatal("any token accepts")
	}
	w.must(w.accept(token))
	w.fits()
	w.work()
	w.emptyEtcd()
	if err := w.accept(token); err == nil {
		w.t.Fatal("the token is good for the next loss")
	}
}

// later keeps what restore does.
func (w *world) later(restore func()) { w.restored = restore }

func (w *world) restore() { w.restored() }

func (w *world) saveAll() func() {
	etcd, cluster := w.saveEtcd(), w.saveCluster()
	var stores []func()
	for _, name := range w.names {
		stores = append(stores, w.saveStore(name))
	}
	return func() {
		etcd()
		cluster()
		for _, s := range stores {
			s()
		}
	}
}

// exchange gives each of two stores the folder of the other.
func (w *world) exchange() {
	w.t.Helper()
	w.closeStores()
	one, other := w.folder("default"), w.folder("second")
	w.must(os.Rename(one, one+".aside"))
	w.must(os.Rename(other, one))
	w.must(os.Rename(one+".aside", other))
}

// TestReplicas starts many at the same time, on nothing, and lets them check and renew.
func TestReplicas(t *testing.T) {
	w := newWorld(t, etcdtest.Start(t), "/replicas")
	w.store("default")
	for range 5 {
		w.emptyEtcd()
		w.cluster.mark = nil
		w.must(w.store("default").WriteMark(t.Context(), nil))
		var all sync.WaitGroup
		for i := range 8 {
			g := w.guard(nil)
			all.Go(func() {
				for j := range 10 {
					if err := g.Check(t.Context()); err != nil {
						t.Errorf("replica %d, check %d: %v", i, j, err)
						return
					}
					if _, err := w.client.Put(t.Context(), fmt.Sprint(w.objects(), i), "{}"); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
	}
}

// countingStore counts how often its mark is read and written. The first reading waits until it may go on.
type countingStore struct {
	instance.Store
	goOn          chan struct{}
	reads, writes atomic.Int64
}

func (c *countingStore) ReadMark(ctx context.Context) ([]byte, error) {
	if c.reads.Add(1) == 1 {
		<-c.goOn
	}
	return c.Store.ReadMark(ctx)
}

func (c *countingStore) WriteMark(ctx context.Context, mark []byte) error {
	c.writes.Add(1)
	return c.Store.WriteMark(ctx, mark)
}

// TestManyAskAtOnce has many ask whether all fits together while somebody looks. The looks are few, see what is there
// after the question, and renew no mark although etcd has changed.
func TestManyAskAtOnce(t *testing.T) {
	w := newWorld(t, etcdtest.Start(t), "/many")
	counted := &countingStore{goOn: make(chan struct{})}
	close(counted.goOn)
	g := w.guard(func(c *instance.Config) { counted.Store = c.Stores["default"]; c.Stores["default"] = counted })
	w.must(g.Check(t.Context()))
	w.putObject()
	counted.reads.Store(0)
	counted.writes.Store(0)
	counted.goOn = make(chan struct{})
	const many = 50
	var asked, all sync.WaitGroup
	asked.Add(many)
	verdicts := make(chan error, many)
	for range many {
		all.Go(func() {
			asked.Done()
			verdicts <- g.Fits(t.Context(), "default")
		})
	}
	asked.Wait()
	close(counted.goOn)
	all.Wait()
	close(verdicts)
	for err := range verdicts {
		w.must(err)
	}
	if reads := counted.reads.Load(); reads < 1 || reads > many/2 {
		t.Errorf("the mark was read %d times for %d questions", reads, many)
	}
	if writes := counted.writes.Load(); writes != 0 {
		t.Errorf("the mark was written %d times", writes)
	}
	w.must(os.Remove(filepath.Join(w.folder("default"), "mark")))
	var disagreement *instance.Disagreement
	if err := g.Fits(t.Context(), "default"); !errors.As(err, &disagreement) {
		t.Errorf("with a store that lost its mark: %v", err)
	}
}

var errAway = errors.New("it is away")

// awayStore cannot be read.
type awayStore struct{ instance.Store }

func (awayStore) ReadMark(context.Context) ([]byte, error) { return nil, errAway }

// TestPlacesAway tells what can be decided while a place cannot be read.
func TestPlacesAway(t *testing.T) {
	client := etcdtest.Start(t)
	store := func(c *instance.Config) { c.Stores["default"] = awayStore{c.Stores["default"]} }
	for name, test := range map[string]struct {
		before func(w *world)
		away   func(*instance.Config)
		want   string // of the reason, or empty if all fits
		sweeps bool
	}{
		"first start, store away":  {away: store, want: "unverified"},
		"second start, store away": {before: (*world).fits, away: store},
		"second start, cluster away": {
			before: (*world).fits, want: "unverified",
			away: func(c *instance.Config) { c.Cluster = &object{err: errAway} },
		},
		"etcd emptied, store away": {before: func(w *world) { w.fits(); w.emptyEtcd() }, away: store, want: "disagreement"},
		"other store away": {
			before: func(w *world) { w.names = append(w.names, "second"); w.fits() }, sweeps: true,
			away: func(c *instance.Config) { c.Stores["second"] = awayStore{c.Stores["second"]} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, client, "/"+strings.ReplaceAll(name, " ", "-"))
			if test.before != nil {
				test.before(w)
			}
			g := w.guard(test.away)
			err := g.Check(t.Context())
			var unverified *instance.Unverified
			var disagreement *instance.Disagreement
			switch {
			case test.want == "" && err != nil,
				test.want == "unverified" && (!errors.As(err, &unverified) || !errors.Is(err, errAway)),
				test.want == "disagreement" && !errors.As(err, &disagreement):
				t.Fatal(err)
			}
			if err := g.Sweep(t.Context(), "default"); (err == nil) != test.sweeps {
				t.Errorf("sweeping: %v", err)
			}
			if err := g.Fits(t.Context(), "default"); (err == nil) != test.sweeps {
				t.Errorf("whether the store fits: %v", err)
			}
			if err := g.Fits(t.Context(), ""); (err == nil) != (test.want == "") {
				t.Errorf("whether etcd fits: %v", err)
			}
			if disagreement != nil {
				again := w.guard(func(c *instance.Config) { test.away(c); c.Accept = disagreement.Token })
				if again.Check(t.Context()) == nil {
					t.Error("a loss is accepted although not everything can be seen")
				}
			}
		})
	}
}

// awayKV cannot be read while it is away.
type awayKV struct {
	clientv3.KV
	away *atomic.Bool
}

func (k awayKV) Get(ctx context.Context, key string, o ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if k.away.Load() {
		return nil, errAway
	}
	return k.KV.Get(ctx, key, o...)
}

// TestEtcdGoesAway shows that what was seen once is not said of what cannot be seen.
func TestEtcdGoesAway(t *testing.T) {
	w := newWorld(t, etcdtest.Start(t), "/etcd-away")
	var away atomic.Bool
	g := w.guard(func(c *instance.Config) { c.KV = awayKV{c.KV, &away} })
	w.must(g.Check(t.Context()))
	w.must(g.Fits(t.Context(), "default"))
	away.Store(true)
	w.must(g.Check(t.Context())) // the verdict stays
	for _, store := range []string{"default", ""} {
		if err := g.Fits(t.Context(), store); err == nil {
			t.Errorf("store %q fits, and etcd cannot be read", store)
		}
	}
	away.Store(false)
	w.must(g.Fits(t.Context(), "default"))
}

// TestClusterGoesAway shows that what was seen once is not asked for every time.
func TestClusterGoesAway(t *testing.T) {
	w := newWorld(t, etcdtest.Start(t), "/goes-away")
	g := w.guard(nil)
	w.must(g.Check(t.Context()))
	w.cluster.err = errAway
	w.must(g.Check(t.Context()))
	w.must(g.Sweep(t.Context(), "default"))
}

// TestRunningServer lets etcd change under a server that runs.
func TestRunningServer(t *testing.T) {
	w := newWorld(t, etcdtest.Start(t), "/running")
	seen := make(chan error, 100)
	g := w.guard(func(c *instance.Config) { c.Observe = func(verdict, _ error) { seen <- verdict } })
	if err := g.Confirm(t.Context()); err == nil {
		t.Error("it confirms before it has looked")
	}
	w.must(g.Check(t.Context()))
	w.must(g.Confirm(t.Context()))
	w.work() // another replica
	w.must(g.Confirm(t.Context()))
	back := w.saveEtcd()
	w.emptyEtcd()
	if err := g.Err(); err != nil {
		t.Fatal(err)
	}
	if err := g.Confirm(t.Context()); err == nil {
		t.Error("it confirms what an empty etcd does not have")
	}
	var d *instance.Disagreement
	if err := g.Err(); !errors.As(err, &d) {
		t.Fatal(err)
	}
	if g.Sweep(t.Context(), "default") == nil {
		t.Error("it sweeps")
	}
	since := d.Since
	w.now = w.now.Add(time.Hour)
	if err := g.Check(t.Context()); !errors.As(err, &d) || !d.Since.Equal(since) {
		t.Errorf("it disagrees since %v, not %v", d.Since, since)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { g.Run(ctx); close(ended) }()
	back()
	w.must(g.Wait(t.Context()))
	w.must(g.Confirm(t.Context()))
	cancel()
	<-ended
	close(seen)
	var verdicts []bool
	for verdict := range seen {
		if fits := verdict == nil; len(verdicts) == 0 || verdicts[len(verdicts)-1] != fits {
			verdicts = append(verdicts, fits)
		}
	}
	if fmt.Sprint(verdicts) != "[true false true]" {
		t.Errorf("observed %v", verdicts)
	}
}

// TestNothingIsConfirmedUnseen lets etcd change while nothing else can be seen.
func TestNothingIsConfirmedUnseen(t *testing.T) {
	w := newWorld(t, etcdtest.Start(t), "/unseen")
	g := w.guard(nil)
	w.must(g.Check(t.Context()))
	w.emptyEtcd()
	w.cluster.err = errAway
	w.emptyStore("default")
	var u *instance.Unverified
	if err := g.Confirm(t.Context()); !errors.As(err, &u) {
		t.Errorf("got %v", err)
	}
}

// TestSweepRenews shows that an etcd of before a sweep is noticed after it.
func TestSweepRenews(t *testing.T) {
	w := newWorld(t, etcdtest.Start(t), "/sweep")
	g := w.guard(nil)
	w.must(g.Check(t.Context()))
	old := w.saveEtcd()
	w.now = w.now.Add(11 * time.Second)
	w.putObject()
	w.must(g.Sweep(t.Context(), "default"))
	old()
	if _, got := w.disagrees(); got != "cluster EtcdOlder, store/default EtcdOlder" {
		t.Errorf("found %q", got)
	}
}

// TestIdle shows that nothing is written while nothing happens.
func TestIdle(t *testing.T) {
	w := newWorld(t, etcdtest.Start(t), "/idle")
	w.fits()
	mark := string(w.cluster.mark)
	for range 3 {
		w.now = w.now.Add(time.Hour)
		w.fits()
	}
	if got := string(w.cluster.mark); got != mark {
		t.Errorf("the mark was %s and is %s", mark, got)
	}
}

// TestNothingIsSweptAfterAnAcceptance waits for a day.
func TestNothingIsSweptAfterAnAcceptance(t *testing.T) {
	w := newWorld(t, etcdtest.Start(t), "/hold")
	w.fits()
	w.emptyEtcd()
	d, _ := w.disagrees()
	w.must(w.accept(d.Token))
	g := w.guard(nil)
	if err := g.Sweep(t.Context(), "default"); !errors.Is(err, instance.ErrHold) {
		t.Errorf("sweeping: %v", err)
	}
	w.now = w.now.Add(24*time.Hour + time.Second)
	w.must(g.Sweep(t.Context(), "default"))
}

// TestAcceptanceIsTakenBack finds the lost etcd after its loss was accepted.
func TestAcceptanceIsTakenBack(t *testing.T) {
	w := newWorld(t, etcdtest.Start(t), "/back")
	w.fits()
	w.work()
	lost := w.saveEtcd()
	w.emptyEtcd()
	d, _ := w.disagrees()
	w.must(w.accept(d.Token))
	w.work()
	lost()
	d, got := w.disagrees()
	if got != "cluster Foreign, store/default Foreign" {
		t.Fatalf("found %q", got)
	}
	w.must(w.accept(d.Token))
	w.work()
}

// TestRecordStaysSmall renews often, with a place that takes no mark.
func TestRecordStaysSmall(t *testing.T) {
	w := newWorld(t, etcdtest.Start(t), "/small")
	w.fits()
	w.cluster.err = errAway
	for range 50 {
		w.now = w.now.Add(time.Minute)
		w.putObject()
		w.guard(func(c *instance.Config) { c.Cluster = nil }).Check(t.Context())
	}
	w.cluster.err = nil
	w.fits()
	resp, err := w.client.Get(t.Context(), w.content()+"/instance")
	w.must(err)
	if n := len(resp.Kvs[0].Value); n > 2048 || !json.Valid(resp.Kvs[0].Value) {
		t.Errorf("the record has %d bytes: %s", n, resp.Kvs[0].Value)
	}
}
