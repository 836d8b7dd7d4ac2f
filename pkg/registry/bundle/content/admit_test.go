// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content"
)

// A write that finds no place is told to come again; places of uploads are none of attempts.
func TestWritesAtTheSameTimeAreBounded(t *testing.T) {
	w := newWorld(t)
	w.addUpload("app")
	body := archive(t, map[string]string{"file": "1"})
	for range 3 * maxUploads { // each gives its place back, also when it is refused
		w.do(http.MethodPut, "app", body)
		w.do(http.MethodPut, "app", []byte("no tar"))
	}
	for _, namespace := range []string{"team", "another"} {
		if _, err := w.rest.uploads.Take(t.Context(), namespace); err != nil {
			t.Fatal(err)
		}
	}
	got := w.do(http.MethodPut, "app", body)
	if s := got.status(t); got.code != http.StatusTooManyRequests || s.Details.RetryAfterSeconds < 1 {
		t.Errorf("%d: %+v", got.code, s)
	}
	w.addImage("image").UID = "uid-2"
	w.caller = podCaller("team", "unpack", "pod-uid")
	attempt, _ := canonical(t, body)
	if got := w.do(http.MethodPut, "image", attempt); got.code != http.StatusCreated {
		t.Errorf("an attempt beside the uploads: %d %s", got.code, got.body)
	}
}

func TestStoresKnowForWhomTheyAreWrittenTo(t *testing.T) {
	w := newWorld(t)
	w.addUpload("app")
	tenant := ""
	w.store.created = func(ctx context.Context) { tenant = content.Tenant(ctx) }
	w.put("app", "1")
	if tenant != "team" {
		t.Errorf("content was written for %q", tenant)
	}
}

func TestNoRoom(t *testing.T) {
	for name, test := range map[string]struct {
		after int // how often there is room
		body  string
	}{
		"from the start": {0, "1"},
		"on the way":     {1, strings.Repeat("x", 2*roomInterval)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.classes["raw"].Limits = nil
			w.addUpload("app")
			w.put("app", "old")
			files := w.files()
			asked := 0
			w.store.room = func() error {
				if asked++; asked > test.after {
					return fmt.Errorf("reserve: %w", content.ErrNoSpace)
				}
				return nil
			}
			got := w.do(http.MethodPut, "app", archive(t, map[string]string{"file": test.body}))
			if got.code != http.StatusInsufficientStorage {
				t.Errorf("%d %s", got.code, got.body)
			}
			if now := w.files(); !slices.Equal(now, files) {
				t.Errorf("the store holds %v", now)
			}
		})
	}
}

// What was called lost, and is there again, is served and said to be.
func TestContentThatComesBack(t *testing.T) {
	w := newWorld(t)
	w.addUpload("app")
	_, summary := w.put("app", "x")
	aside := w.blob(summary.Digest) + ".aside"
	if err := os.Rename(w.blob(summary.Digest), aside); err != nil {
		t.Fatal(err)
	}
	w.rest.CheckStored(t.Context(), w.now("app"))
	if available(w.now("app")) {
		t.Fatal("it is not said to be lost")
	}
	if err := os.Rename(aside, w.blob(summary.Digest)); err != nil {
		t.Fatal(err)
	}
	w.rest.CheckStored(t.Context(), w.now("app"))
	b := w.now("app")
	if !available(b) || !meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionReady) {
		t.Errorf("conditions are %+v", b.Status.Conditions)
	}
}

// A commit that waits for another ends, and so does the deletion of a bundle.
func TestACommitThatHangsHoldsNobodyUp(t *testing.T) {
	w := newWorld(t)
	b := w.addUpload("app")
	w.put("app", "x")
	w.rest.CommitTimeout = 10 * time.Millisecond
	unlock, err := w.rest.lockCommit(t.Context(), b.UID)
	if err != nil {
		t.Fatal(err)
	}
	if got := w.do(http.MethodPut, "app", archive(t, map[string]string{"a": "1"})); got.code != http.StatusServiceUnavailable {
		t.Errorf("%d %s", got.code, got.body)
	}
	records := len(w.records.all)
	w.rest.Release(w.now("app"))
	if len(w.records.all) != records {
		t.Error("the records are gone, and a commit could have added one")
	}
	unlock()
	w.rest.Release(w.now("app"))
	if len(w.records.all) != 0 {
		t.Errorf("records are left: %v", w.records.all)
	}
}
