// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/reference"
)

// List gives the bundles of a namespace, or all.
func (m *memoryBundles) List(ctx context.Context) ([]rukpak.Bundle, error) {
	m.Lock()
	defer m.Unlock()
	var list []rukpak.Bundle
	for _, b := range m.all {
		if ns := genericapirequest.NamespaceValue(ctx); ns == "" || ns == b.Namespace {
			list = append(list, *b.DeepCopy())
		}
	}
	return list, m.err
}

// flip changes a bit of stored content.
func (w *world) flip(digest string) {
	w.t.Helper()
	data, err := os.ReadFile(w.blob(digest))
	if err != nil {
		w.t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(w.blob(digest), data, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func TestDamagedContentIsLostForAllWhoHaveIt(t *testing.T) {
	w := newWorld(t)
	same, other := archive(t, map[string]string{"a": "same"}), archive(t, map[string]string{"a": "other"})
	for i, name := range []string{"one", "two", "past", "other"} {
		w.addUpload(name).UID = types.UID(fmt.Sprint("uid-", i))
		body := same
		if name == "other" {
			body = other
		}
		if a := w.do(http.MethodPut, name, body); a.code != http.StatusCreated {
			t.Fatal(a.code)
		}
	}
	// One has it in its history.
	if a := w.do(http.MethodPut, "past", other); a.code != http.StatusOK {
		t.Fatal(a.code)
	}
	digest := w.now("one").Status.Content.Digest
	if removed, err := w.rest.Damaged(t.Context(), "default", digest); err != nil || removed || !available(w.now("one")) {
		t.Fatalf("whole content: %v, %v", removed, err)
	}
	w.flip(digest)
	if removed, err := w.rest.Damaged(t.Context(), "default", digest); err != nil || !removed {
		t.Fatalf("damaged content: %v, %v", removed, err)
	}
	for name, want := range map[string]bool{"one": false, "two": false, "past": true, "other": true} {
		if b := w.now(name); available(b) != want {
			t.Errorf("%s: %+v", name, b.Status.Conditions)
		}
	}
	if h := w.now("past").Status.History; len(h) != 0 {
		t.Errorf("it is still in a history: %v", h)
	}
	// Who writes the same bytes again heals everybody that has a record of them.
	if a := w.do(http.MethodPut, "one", same); a.code != http.StatusOK || !available(w.now("one")) {
		t.Fatalf("written again: %d", a.code)
	}
	list, err := w.bundles.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.rest.CheckAll(t.Context(), list)
	if !available(w.now("two")) {
		t.Error("the other bundle with the same content is still without it")
	}
	if _, err := w.rest.Damaged(t.Context(), "nowhere", digest); err == nil {
		t.Error("a store that is not there has nothing damaged")
	}
}

// gatheringStore answers no Stat before so many are asked for at the same time.
type gatheringStore struct {
	content.Store
	want    int32
	waiting atomic.Int32
	all     chan struct{}
}

func (g *gatheringStore) Stat(ctx context.Context, digest string) (content.Info, error) {
	if g.waiting.Add(1) == g.want {
		close(g.all)
	}
	select {
	case <-g.all:
	case <-ctx.Done():
		return content.Info{}, ctx.Err()
	}
	return content.Info{Digest: digest, Size: 1}, nil
}

func TestManyBundlesAreLookedAtTogether(t *testing.T) {
	w := newWorld(t)
	store := &gatheringStore{Store: w.store, want: checksAtOnce, all: make(chan struct{})}
	w.rest.Stores["default"] = store
	digest := "sha256:" + fmt.Sprintf("%064d", 1)
	var bundles []rukpak.Bundle
	for i := range 1000 {
		uid := types.UID(fmt.Sprint(i))
		w.records.all[reference.Ref{Store: "default", Digest: digest, BundleUID: string(uid)}] = true
		b := rukpak.Bundle{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprint("b", i), UID: uid},
			Status:     rukpak.BundleStatus{Content: &rukpak.ContentStatus{Digest: digest, Size: 1}},
		}
		conditions.SetContentAvailable(&b.Status.Conditions, 1, true, v1alpha1.ReasonAvailable, "content is served")
		bundles = append(bundles, b)
	}
	w.rest.CheckAll(t.Context(), bundles)
	if got := store.waiting.Load(); got != 1000 {
		t.Errorf("%d contents were looked at", got)
	}
}

// What looks damaged may be that this is another's store.
func TestNothingIsTakenAwayFromAStoreThatMayBeAnothers(t *testing.T) {
	w := newWorld(t)
	w.addUpload("app")
	_, summary := w.put("app", "x")
	w.flip(summary.Digest)
	foreign := errors.New("the store belongs to another instance")
	w.rest.Whole = func(context.Context, string) error { return foreign }
	if removed, err := w.rest.Damaged(t.Context(), "default", summary.Digest); removed || !errors.Is(err, foreign) {
		t.Errorf("removed %v, %v", removed, err)
	}
	if got := w.do(http.MethodGet, "app", nil); got.code != http.StatusServiceUnavailable || !available(w.now("app")) {
		t.Errorf("%d: %s", got.code, got.body)
	}
	if _, err := os.Stat(w.blob(summary.Digest)); err != nil {
		t.Error(err)
	}
}
