// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/reference"
)

const (
	storeName = "default"
	prefix    = "/test"
	grace     = time.Hour
)

var (
	start  = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	digest = "sha256:" + strings.Repeat("ab", 32)
	// somebody is live all the time, so that the API state never looks lost.
	somebody = Pair{BundleUID: "somebody", Digest: "sha256:" + strings.Repeat("cd", 32)}
)

// world is the state outside of processes: etcd, the store, the API, the time.
type world struct {
	keys    *keys
	blobs   map[string]bool
	bundles map[string]string // UID to the digest in the status; "" is none yet; no key is deleted
	ticks   int               // of more than a grace period each
}

func newWorld() *world {
	return &world{keys: newKeys(), blobs: map[string]bool{}, bundles: map[string]string{}}
}

func (w *world) clone() *world {
	return &world{keys: w.keys.clone(), blobs: maps.Clone(w.blobs), bundles: maps.Clone(w.bundles), ticks: w.ticks}
}

func (w *world) now() time.Time { return start.Add(time.Duration(w.ticks) * (grace + time.Minute)) }

func (w *world) state() string {
	return fmt.Sprint(w.keys.state(), w.blobs, w.bundles, w.ticks) // maps are printed in order
}

func (w *world) live() map[Pair]struct{} {
	live := map[Pair]struct{}{somebody: {}}
	for uid, digest := range w.bundles {
		if digest != "" {
			live[Pair{BundleUID: uid, Digest: digest}] = struct{}{}
		}
	}
	return live
}

func refKey(uid string) string {
	return strings.Join([]string{prefix, "refs", storeName, digest, uid}, "/")
}

// check is what holds at every moment: what a status names can be read.
func (w *world) check() error {
	for uid, named := range w.bundles {
		if named == "" {
			continue
		}
		if !w.blobs[named] {
			return fmt.Errorf("the status of %s names a blob that is not there", uid)
		}
		if _, ok := w.keys.values[refKey(uid)]; !ok {
			return fmt.Errorf("the status of %s names content without a record", uid)
		}
	}
	return nil
}

// checkClean is what holds at the end: nothing is there that no status names.
func (w *world) checkClean() error {
	want := map[string]bool{}
	for uid, named := range w.bundles {
		if named != "" {
			want[refKey(uid)] = true
		}
	}
	for key := range w.keys.values {
		if !want[key] {
			return fmt.Errorf("%s is left", key)
		}
	}
	for blob := range w.blobs {
		if len(want) == 0 {
			return fmt.Errorf("blob %s is left", blob)
		}
	}
	return w.check()
}

// checkCrashed is the end of a world in which every process is killed now.
func (w *world) checkCrashed() error {
	w = w.clone()
	c := w.collector(direct, false)
	for range 2 {
		w.ticks++
		if report, err := c.Collect(context.Background()); err != nil || report.Failures > 0 {
			return fmt.Errorf("round: %v, %w", report.Errors, err)
		}
		if err := w.check(); err != nil {
			return err
		}
	}
	return w.checkClean()
}

// stepFunc lets an actor wait for its turn, and notes what it then saw.
type stepFunc func(name string, do func() string)

func (w *world) records(step stepFunc, lax bool) *reference.Records {
	return reference.New(&actorKV{keys: w.keys, step: step, lax: lax}, prefix, w.now)
}

// collector is a new one, as in a process that has just started.
func (w *world) collector(step stepFunc, lax bool) *Collector {
	c, err := New(Config{
		StoreName: storeName,
		Store:     &actorStore{world: w, step: step},
		Records:   w.records(step, lax),
		Live: func(context.Context) (live map[Pair]struct{}, err error) {
			step("list bundles", func() string {
				live = w.live()
				return fmt.Sprint(live)
			})
			return live, nil
		},
		Now:   w.now,
		Grace: grace, Hold: grace, HoldAbove: 100,
	})
	if err != nil {
		panic(err)
	}
	return c
}

// actorStore is the content.Store of one actor. A blob has no bytes.
type actorStore struct {
	world *world
	step  stepFunc
}

func (s *actorStore) Create(context.Context) (content.Writer, error) {
	return &actorWriter{store: s}, nil
}

func (s *actorStore) Delete(_ context.Context, digest string) error {
	s.step("delete blob", func() string { delete(s.world.blobs, digest); return "" })
	return nil
}

func (s *actorStore) Walk(_ context.Context, fn func(content.Info) error) error {
	var all []string
	s.step("walk", func() string {
		all = slices.Sorted(maps.Keys(s.world.blobs))
		return fmt.Sprint(all)
	})
	for _, digest := range all {
		if err := fn(content.Info{Digest: digest, Size: 1}); err != nil {
			return err
		}
	}
	return nil
}

func (s *actorStore) Open(context.Context, string, int64, int64) (io.ReadCloser, error) {
	return nil, errors.ErrUnsupported
}

func (s *actorStore) Stat(context.Context, string) (content.Info, error) {
	return content.Info{}, errors.ErrUnsupported
}

type actorWriter struct {
	content.Writer // nil: only what is below is used
	store          *actorStore
}

func (w *actorWriter) Commit(_ context.Context, digest string) error {
	w.store.step("commit blob", func() string { w.store.world.blobs[digest] = true; return "" })
	return nil
}
