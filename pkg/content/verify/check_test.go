// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"rukpak.io/apiserver/pkg/content/etcdtest"
	"rukpak.io/apiserver/pkg/content/reference"
)

// found gives what a report says in short.
func found(r *Report) []string {
	short := []string{}
	for _, p := range r.Problems {
		short = append(short, strings.TrimSuffix(fmt.Sprintf("%s %s", p.Kind, p.Bundle), " "))
	}
	return short
}

func TestCheckAndRepair(t *testing.T) {
	client := etcdtest.Start(t)
	for name, test := range map[string]struct {
		// arrange returns the digest that it is about.
		arrange func(w *world) string
		found   []string
		// left is what Check finds after Repair, and blob whether the bytes are still there.
		left []string
		blob bool
	}{
		"a whole bundle": {
			arrange: func(w *world) string { return w.bundle("a", data("a")) },
			blob:    true,
		},
		"empty content": {
			arrange: func(w *world) string { return w.bundle("a", nil) },
			blob:    true,
		},
		"a flipped bit": {
			arrange: func(w *world) string { d := w.bundle("a", data("a")); w.flip(d); return d },
			found:   []string{"DamagedBlob"}, left: []string{"MissingBlob team/a"},
		},
		"a truncated blob": {
			arrange: func(w *world) string { d := w.bundle("a", data("a")); w.truncate(d); return d },
			found:   []string{"DamagedBlob", "WrongSize team/a"}, left: []string{"MissingBlob team/a"},
		},
		"a removed blob": {
			arrange: func(w *world) string { d := w.bundle("a", data("a")); w.remove(d); return d },
			found:   []string{"MissingBlob team/a"}, left: []string{"MissingBlob team/a"},
		},
		"a removed record": {
			arrange: func(w *world) string { d := w.blob(data("a")); w.name("a", d, len(data("a"))); w.age(); return d },
			found:   []string{"MissingRecord team/a"}, left: []string{"MissingRecord team/a"}, blob: true,
		},
		"neither record nor blob": {
			arrange: func(w *world) string { d := w.blob(data("a")); w.remove(d); w.name("a", d, 1); return d },
			found:   []string{"MissingBlob team/a"}, left: []string{"MissingBlob team/a"},
		},
		"another size than the bundle says": {
			arrange: func(w *world) string { d := w.blob(data("a")); w.record("a", d); w.name("a", d, 1); return d },
			found:   []string{"WrongSize team/a"}, left: []string{"WrongSize team/a"}, blob: true,
		},
		"an old orphan": {
			arrange: func(w *world) string { d := w.blob(data("a")); w.age(); return d },
			found:   []string{"OrphanBlob"},
		},
		"a young orphan": {
			arrange: func(w *world) string { return w.blob(data("a")) },
			blob:    true,
		},
		"an orphan that the collector has marked a moment ago": {
			arrange: func(w *world) string { d := w.blob(data("a")); w.age(); w.mark(d); return d },
			blob:    true,
		},
		"an old record of a bundle that is gone": {
			arrange: func(w *world) string { d := w.blob(data("a")); w.record("gone", d); w.age(); return d },
			found:   []string{"StaleRecord team/gone"}, left: []string{"OrphanBlob"}, blob: true,
		},
		"a young record of a bundle that has no content yet": {
			arrange: func(w *world) string { d := w.blob(data("a")); w.record("new", d); return d },
			blob:    true,
		},
		"an old record without blob": {
			arrange: func(w *world) string { d := w.blob(data("a")); w.record("gone", d); w.remove(d); w.age(); return d },
			found:   []string{"RecordWithoutBlob team/gone"},
		},
		"an old part of an upload that is under way": {
			arrange: func(w *world) string {
				d := w.bundle("a", data("a"))
				w.named[len(w.named)-1].Part = true
				w.age()
				return d
			},
			blob: true,
		},
		"a lost part of an upload that is under way": {
			arrange: func(w *world) string {
				d := w.bundle("a", data("a"))
				w.named[len(w.named)-1].Part = true
				w.remove(d)
				w.age()
				return d
			},
		},
		"a damaged orphan": {
			arrange: func(w *world) string { d := w.blob(data("a")); w.flip(d); w.age(); return d },
			found:   []string{"DamagedBlob", "OrphanBlob"},
		},
		"content that another bundle has too": {
			arrange: func(w *world) string {
				d := w.bundle("a", data("a"))
				w.record("gone", d)
				w.age()
				return d
			},
			found: []string{"StaleRecord team/gone"}, blob: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOn(t, client)
			w.bundle("other", data("other"))
			digest := test.arrange(w)
			report, err := w.checker().Check(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(found(report), append([]string{}, test.found...)) {
				t.Fatalf("found %v", report.Problems)
			}
			for _, p := range report.Problems {
				if p.Digest != digest {
					t.Errorf("%s is about %s", p.Kind, p.Digest)
				}
			}
			if err := w.checker().Repair(t.Context(), report); err != nil {
				t.Fatal(err)
			}
			if w.has(digest) != test.blob {
				t.Errorf("after the repair the blob is there: %v", w.has(digest))
			}
			again, err := w.checker().Check(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(found(again), append([]string{}, test.left...)) {
				t.Errorf("after the repair there is %v", again.Problems)
			}
		})
	}
}

// age lets more than the grace period pass.
func (w *world) age() { w.now = w.now.Add(2 * grace) }

func (w *world) mark(digest string) {
	w.t.Helper()
	if ok, err := w.records.Mark(w.t.Context(), storeName, digest); err != nil || !ok {
		w.t.Fatal(ok, err)
	}
}

func TestRepairHoldsWhatLooksLikeALostState(t *testing.T) {
	client := etcdtest.Start(t)
	const many = holdAbove + 1
	for name, test := range map[string]struct {
		arrange func(w *world)
		blobs   int // that are left
	}{
		"no bundle names anything": {func(w *world) { w.named = nil }, many + 1},
		"most are orphans": {func(w *world) {
			for rec, err := range w.records.List(w.t.Context(), storeName) {
				if err != nil {
					w.t.Fatal(err)
				}
				if rec.BundleUID != "kept" {
					w.unrecord(rec)
				}
			}
			w.named = slices.DeleteFunc(w.named, func(n Named) bool { return n.BundleUID != "kept" })
		}, many + 1},
		"most are damaged": {func(w *world) {
			for _, n := range w.named[1:] {
				w.flip(n.Digest)
			}
		}, many + 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOn(t, client)
			w.bundle("kept", []byte("kept"))
			for i := range many {
				w.bundle(fmt.Sprint("b", i), fmt.Append(nil, "content ", i))
			}
			w.age()
			test.arrange(w)
			report, err := w.checker().Check(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(report.Problems) < many {
				t.Fatalf("found %v", report.Problems)
			}
			if err := w.checker().Repair(t.Context(), report); err != nil {
				t.Fatal(err)
			}
			for _, p := range report.Problems {
				if p.Repair != "" && !strings.HasPrefix(p.Repair, "held") {
					t.Errorf("%s: %s", p.Kind, p.Repair)
				}
			}
			again, err := w.checker().Check(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if again.Stores[0].Blobs != test.blobs {
				t.Errorf("%d blobs are left", again.Stores[0].Blobs)
			}
		})
	}
}

func (w *world) unrecord(rec reference.Record) {
	w.t.Helper()
	if ok, err := w.records.RemoveUnchanged(w.t.Context(), rec); err != nil || !ok {
		w.t.Fatal(ok, err)
	}
}

// A bundle that is deleted while the check runs has lost nothing.
func TestCheckLooksTwice(t *testing.T) {
	w := newWorld(t)
	digest := w.bundle("a", data("a"))
	w.remove(digest)
	c, looks := w.checker(), 0
	c.Named = func(context.Context) ([]Named, error) {
		if looks++; looks > 1 {
			return nil, nil
		}
		return w.named, nil
	}
	report, err := c.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Problems) > 0 {
		t.Errorf("found %v", report.Problems)
	}
}

// Content of a store that the check was not given is not called lost.
func TestAStoreThatIsNotConfigured(t *testing.T) {
	w := newWorld(t)
	digest := "sha256:" + strings.Repeat("1", 64)
	if err := w.records.Add(t.Context(), reference.Ref{Store: "other", Digest: digest, BundleUID: "a"}, "team", "a"); err != nil {
		t.Fatal(err)
	}
	w.name("a", digest, 5)
	report, err := w.checker().Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Problems) != 1 || report.Problems[0].Kind != StoreNotConfigured || report.Problems[0].Store != "other" {
		t.Errorf("found %+v", report.Problems)
	}
	if err := w.checker().Repair(t.Context(), report); err != nil || report.Problems[0].Repair != "" {
		t.Errorf("repaired: %+v, %v", report.Problems, err)
	}
}

// bounded fails deletions that may go on for longer than the collector takes them for alive.
type bounded struct{ Store }

func (b bounded) Delete(ctx context.Context, digest string) error {
	if end, ok := ctx.Deadline(); !ok || time.Until(end) > removeTimeout {
		return errors.New("it has no deadline, or a late one")
	}
	return b.Store.Delete(ctx, digest)
}

// Whoever stores the content of an orphan after the collector took its removal back has it.
func TestTheRemovalOfAnOrphanIsBounded(t *testing.T) {
	w := newWorld(t)
	w.bundle("other", data("other"))
	digest := w.blob(data("a"))
	w.age()
	c := w.checker()
	c.Stores[storeName] = bounded{w.store}
	report, err := c.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Repair(t.Context(), report); err != nil || w.has(digest) || report.Problems[0].Repair != Removed {
		t.Errorf("got %+v, %v", report.Problems, err)
	}
}
