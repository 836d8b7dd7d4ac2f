// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"testing"

	"rukpak.io/apiserver/pkg/content/reference"
)

var deep = flag.Bool("model.deep", false, "explore the model's scenarios in their full size, which takes minutes")

// scenario is what the model starts from, and who acts.
type scenario struct {
	name    string
	size    size
	deep    size // with -model.deep, if set
	prepare func(t *testing.T, w *world)
	deleted string // UID of the bundle that the deleter deletes
	fault   fault
}

type size struct {
	committers int // of the same digest
	collectors int
	rounds     int // of each collector
	crashes    int // of collectors
	ticks      int
}

// fault is a mistake put into the protocol, to see that the model finds it.
type fault string

const (
	none          fault = ""
	blobFirst     fault = "the blob before the record"
	noRecord      fault = "no record at all"
	skipBlob      fault = "a commit that trusts a blob seen before the record"
	laxCommitter  fault = "an Add that ignores tombstones"
	laxCollector  fault = "a collector that does not look again"
	slowCommitter fault = "a committer without a deadline"
)

var scenarios = []scenario{
	{name: "nothing is there", size: size{committers: 2, collectors: 1, rounds: 2, crashes: 1, ticks: 2}, deleted: "one"},
	{name: "a bundle that goes has the content", size: size{committers: 2, collectors: 1, rounds: 1, crashes: 0, ticks: 2}, deleted: "old",
		deep: size{committers: 2, collectors: 1, rounds: 2, crashes: 1, ticks: 2},
		prepare: func(t *testing.T, w *world) {
			w.blobs[digest] = true
			w.bundles["old"] = digest
			addRecord(t, w, "old")
			w.ticks++
		}},
	{name: "the blob is an orphan with a tombstone", size: size{committers: 1, collectors: 1, rounds: 2, crashes: 1, ticks: 1}, deleted: "one",
		deep: size{committers: 2, collectors: 1, rounds: 2, crashes: 1, ticks: 1},
		prepare: func(t *testing.T, w *world) {
			w.blobs[digest] = true
			mark(t, w)
			w.ticks++
		}},
	{name: "a collector died while it deleted", size: size{committers: 1, collectors: 1, rounds: 2, crashes: 1, ticks: 1}, deleted: "one",
		deep: size{committers: 2, collectors: 1, rounds: 2, crashes: 1, ticks: 1},
		prepare: func(t *testing.T, w *world) {
			w.blobs[digest] = true
			startDeleting(t, w, mark(t, w))
			w.ticks++
		}},
	{name: "an earlier attempt died after its record", size: size{committers: 1, collectors: 1, rounds: 2, crashes: 1, ticks: 1}, deleted: "two",
		deep: size{committers: 2, collectors: 1, rounds: 2, crashes: 1, ticks: 1},
		prepare: func(t *testing.T, w *world) {
			addRecord(t, w, "one")
			w.ticks++
		}},
	{name: "two collectors", size: size{committers: 1, collectors: 2, rounds: 1, crashes: 0, ticks: 1}, deleted: "two",
		deep: size{committers: 2, collectors: 2, rounds: 1, crashes: 1, ticks: 1},
		prepare: func(t *testing.T, w *world) {
			w.blobs[digest] = true
			startDeleting(t, w, mark(t, w))
		}},
}

func addRecord(t *testing.T, w *world, uid string) {
	t.Helper()
	if err := w.records(direct, false).TryAdd(t.Context(), ref(uid), "ns", uid); err != nil {
		t.Fatal(err)
	}
}

func mark(t *testing.T, w *world) reference.Tombstone {
	t.Helper()
	r := w.records(direct, false)
	if ok, err := r.Mark(t.Context(), storeName, digest); !ok || err != nil {
		t.Fatal(ok, err)
	}
	for tomb, err := range r.Tombstones(t.Context(), storeName) {
		if err != nil {
			t.Fatal(err)
		}
		return tomb
	}
	panic("no tombstone")
}

func startDeleting(t *testing.T, w *world, tomb reference.Tombstone) {
	t.Helper()
	if _, ok, err := w.records(direct, false).StartDeleting(t.Context(), tomb); !ok || err != nil {
		t.Fatal(ok, err)
	}
}

func direct(_ string, do func() string) { do() }

func ref(uid string) reference.Ref {
	return reference.Ref{Store: storeName, Digest: digest, BundleUID: uid}
}

// start is a run of the committers, a deleter and the collectors.
func (s scenario) start(t *testing.T) *run {
	w := newWorld()
	w.bundles["one"], w.bundles["two"] = "", ""
	if s.prepare != nil {
		s.prepare(t, w)
	}
	r := &run{world: w, ticks: s.size.ticks, crashes: s.size.crashes, respawn: map[*actor]func(*actor){}}
	begin := func(a *actor, do func(*actor)) {
		r.actors = append(r.actors, a)
		r.start(a, do)
	}
	for _, uid := range []string{"one", "two"}[:s.size.committers] {
		a := &actor{name: "committer " + uid, bounded: func(step string) bool { return step != "begin" }}
		if s.fault == slowCommitter {
			a.bounded = nil
		}
		begin(a, func(a *actor) { s.commit(t, w, a, uid) })
	}
	begin(&actor{name: "deleter"}, func(a *actor) { s.delete(t, w, a) })
	for i := range s.size.collectors {
		a := &actor{name: "collector " + string(rune('A'+i))}
		if s.size.collectors > 1 {
			a.bounded = func(step string) bool { return step == "delete blob" } // by deleteTimeout
		}
		do := func(a *actor) { s.collect(t, w, a) }
		r.respawn[a] = do
		begin(a, do)
	}
	return r
}

// commit does what package reference asks of a committer.
func (s scenario) commit(t *testing.T, w *world, a *actor, uid string) {
	records := w.records(a.step, s.fault == laxCommitter)
	writer := &actorWriter{store: &actorStore{world: w, step: a.step}}
	add := func() {
		for {
			err := records.TryAdd(t.Context(), ref(uid), "ns", uid)
			if err == nil {
				return
			}
			if !errors.Is(err, reference.ErrDeleting) {
				t.Errorf("add: %v", err)
			}
			before := w.keys.state()
			a.ready = func() bool { return w.keys.state() != before } // in place of a pause
		}
	}
	seen := false
	commit := func() {
		if seen {
			return
		}
		if err := writer.Commit(t.Context(), digest); err != nil {
			t.Errorf("commit: %v", err)
		}
	}
	a.begin()
	switch s.fault {
	case blobFirst:
		commit()
		add()
	case noRecord:
		commit()
	case skipBlob:
		a.step("stat blob", func() string { seen = w.blobs[digest]; return fmt.Sprint(seen) })
		add()
		commit()
	default:
		add()
		commit()
	}
	a.step("write status", func() string {
		if _, exists := w.bundles[uid]; exists {
			w.bundles[uid] = digest
		}
		return ""
	})
}

func (s scenario) delete(t *testing.T, w *world, a *actor) {
	a.step("delete bundle", func() string { delete(w.bundles, s.deleted); return "" })
	if err := w.records(a.step, false).Remove(t.Context(), ref(s.deleted)); err != nil {
		t.Errorf("remove: %v", err)
	}
}

// collect does the rounds, of which one in which it dies counts.
func (s scenario) collect(t *testing.T, w *world, a *actor) {
	c := w.collector(a.step, s.fault == laxCollector)
	for a.rounds < s.size.rounds {
		a.begin()
		report, err := c.Collect(context.WithoutCancel(t.Context()))
		if err != nil || report.Failures > 0 {
			t.Errorf("round: %v, %v", report.Errors, err)
		}
		a.rounds++
		a.forget()
	}
}

// TestModel drives the real code of committers, deleters and collectors through
// every interleaving of their steps, over an etcd and a store in memory. In every
// state, what a status names can be read; and from every state, if all processes
// are killed there, two more rounds leave nothing that no status names.
func TestModel(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			if *deep && s.deep != (size{}) {
				s.size = s.deep
			}
			res, err := s.explore(t)
			t.Logf("%d states, %d runs", res.states, res.runs)
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func (s scenario) explore(t *testing.T) (result, error) {
	return explore(func() *run { return s.start(t) }, func(r *run) error {
		if err := r.world.check(); err != nil {
			return err
		}
		return r.world.checkCrashed()
	})
}

// TestModelFindsFaults shows that the model can fail.
func TestModelFindsFaults(t *testing.T) {
	for _, f := range []fault{blobFirst, noRecord, skipBlob, laxCommitter, laxCollector, slowCommitter} {
		t.Run(string(f), func(t *testing.T) {
			for _, s := range scenarios {
				s.fault = f
				if res, err := s.explore(t); err != nil {
					t.Logf("found after %d states, where %s: %v", res.states, s.name, err)
					return
				}
			}
			t.Error("not found")
		})
	}
}
