// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"context"
	"errors"
	"testing"
	"time"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/collect"
	"rukpak.io/apiserver/pkg/content/etcdtest"
	"rukpak.io/apiserver/pkg/content/reference"
)

// between calls functions of a test at two moments of a removal.
type between struct {
	Store
	looks        int
	look, delete func() // before the last look, and before the deletion
}

func (b *between) Stat(ctx context.Context, digest string) (content.Info, error) {
	if b.looks++; b.looks == 2 && b.look != nil {
		b.look()
	}
	return b.Store.Stat(ctx, digest)
}

func (b *between) Delete(ctx context.Context, digest string) error {
	if b.delete != nil {
		b.delete()
	}
	return b.Store.Delete(ctx, digest)
}

// Whoever stores the digest of a damaged blob while that is removed has it afterwards, or knows that he has not.
func TestCommitsBesideARemoval(t *testing.T) {
	client := etcdtest.Start(t)
	for name, test := range map[string]struct {
		at func(b *between, do func())
		// early means that the record is added before the removal begins.
		early, removed bool
	}{
		"begins before the last look":            {at: func(b *between, do func()) { b.look = do }, removed: true},
		"begins before the deletion":             {at: func(b *between, do func()) { b.delete = do }, removed: true},
		"added before, ends before the look":     {at: func(b *between, do func()) { b.look = do }, early: true},
		"added before, ends before the deletion": {at: func(b *between, do func()) { b.delete = do }, early: true, removed: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOn(t, client)
			bytes := data("a")
			digest := w.bundle("a", bytes)
			w.flip(digest)
			writer, err := w.store.Create(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := writer.Write(bytes); err != nil {
				t.Fatal(err)
			}
			ref := reference.Ref{Store: storeName, Digest: digest, BundleUID: "b"}
			add := func() {
				if err := w.records.Add(t.Context(), ref, "team", "b"); err != nil {
					t.Error(err)
				}
			}
			if test.early {
				add()
			}
			committed, stored := make(chan error, 1), make(chan struct{})
			commit := func() {
				go func() {
					if !test.early {
						add()
					}
					committed <- reference.Commit(t.Context(), w.records, storeName, w.store, storedWriter{writer, stored}, digest)
				}()
				if test.early {
					<-stored
				}
			}
			store := &between{Store: w.store}
			test.at(store, commit)
			removed, err := RemoveDamaged(t.Context(), w.records, storeName, store, digest, nil)
			if err != nil || removed != test.removed {
				t.Errorf("removed %v, %v", removed, err)
			}
			if err := <-committed; w.has(digest) != (err == nil) || err != nil && !errors.Is(err, reference.ErrRemoved) {
				t.Errorf("the commit ends with %v, and the blob is there: %v", err, w.has(digest))
			}
			if _, ok, err := w.records.StartRemoving(t.Context(), storeName, digest); err != nil || !ok {
				t.Errorf("a tombstone is left: %v", err)
			}
		})
	}
}

// A removal whose process ended keeps nobody from storing the content again.
func TestARemovalThatWasAbandoned(t *testing.T) {
	client := etcdtest.Start(t)
	for name, live := range map[string]bool{"a bundle names it": true, "there is a record alone": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOn(t, client)
			digest := w.bundle("a", data("a"))
			if _, ok, err := w.records.StartRemoving(t.Context(), storeName, digest); err != nil || !ok {
				t.Fatal(ok, err)
			}
			pairs := map[collect.Pair]struct{}{}
			if live {
				pairs[collect.Pair{BundleUID: "a", Digest: digest}] = struct{}{}
			}
			c, err := collect.New(collect.Config{
				StoreName: storeName, Store: w.store, Records: w.records, Grace: time.Hour, Hold: time.Hour, Now: func() time.Time { return w.now },
				Live: func(context.Context) (map[collect.Pair]struct{}, error) { return pairs, nil },
			})
			if err != nil {
				t.Fatal(err)
			}
			ref := reference.Ref{Store: storeName, Digest: digest, BundleUID: "b"}
			round := func() error {
				t.Helper()
				if _, err := c.Collect(t.Context()); err != nil {
					t.Fatal(err)
				}
				return w.records.TryAdd(t.Context(), ref, "team", "b")
			}
			if err := round(); !errors.Is(err, reference.ErrDeleting) {
				t.Errorf("while it may go on: %v", err)
			}
			w.now = w.now.Add(time.Minute)
			if err := round(); err != nil || !w.has(digest) {
				t.Errorf("afterwards: %v, and the blob is there: %v", err, w.has(digest))
			}
		})
	}
}

// storedWriter tells when it was committed.
type storedWriter struct {
	content.Writer
	stored chan struct{}
}

func (s storedWriter) Commit(ctx context.Context, digest string) error {
	defer close(s.stored)
	return s.Writer.Commit(ctx, digest)
}
