// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content"
)

func full(b *rukpak.Bundle) string {
	c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionStorageFull)
	if c == nil {
		return ""
	}
	return string(c.Status)
}

// allBundles gives the bundles as the server lists them.
func (w *world) allBundles() []rukpak.Bundle {
	w.t.Helper()
	list, err := w.bundles.List(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return list
}

func TestStorageFull(t *testing.T) {
	body := archive(t, map[string]string{"a": "1"})
	for name, fill := range map[string]func(w *world, err error){
		"before the write": func(w *world, err error) { w.store.room = func() error { return err } },
		"in the midst":     func(w *world, err error) { w.store.write = err },
		"at its end":       func(w *world, err error) { w.store.commit = err },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addUpload("app")
			fill(w, fmt.Errorf("disk: %w", content.ErrNoSpace))
			a := w.do(http.MethodPut, "app", body)
			if cause, _ := a.cause(t); a.code != http.StatusInsufficientStorage || cause != "StorageFull" {
				t.Fatalf("%d: %s", a.code, a.body)
			}
			if got := full(w.now("app")); got != "True" {
				t.Fatalf("StorageFull is %q", got)
			}
			w.rest.CheckRoom(t.Context(), w.allBundles())
			if got := full(w.now("app")); name == "before the write" && got != "True" {
				t.Errorf("while there is no room StorageFull becomes %q", got)
			}
			fill(w, nil)
			w.store.room = nil
			if a := w.do(http.MethodPut, "app", body); a.code != http.StatusCreated {
				t.Fatalf("%d: %s", a.code, a.body)
			}
			if got := full(w.now("app")); got != "False" || !available(w.now("app")) {
				t.Errorf("after a commit StorageFull is %q", got)
			}
		})
	}
}

func TestRoomIsBack(t *testing.T) {
	w := newWorld(t)
	w.addUpload("waits").UID = "1"
	w.addUpload("classless").UID = "2"
	w.addUpload("other").UID = "3"
	w.store.room = func() error { return content.ErrNoSpace }
	for _, name := range []string{"waits", "classless"} {
		w.do(http.MethodPut, name, archive(t, map[string]string{"a": "1"}))
	}
	w.bundles.all["classless"].Spec.ProvisionerClassName = "gone"
	w.rest.CheckRoom(t.Context(), w.allBundles())
	if got := [2]string{full(w.now("waits")), full(w.now("classless"))}; got != [2]string{"True", "False"} {
		t.Errorf("without room: %v", got)
	}
	w.store.room = nil
	w.rest.CheckRoom(t.Context(), w.allBundles())
	if got := [2]string{full(w.now("waits")), full(w.now("other"))}; got != [2]string{"False", ""} {
		t.Errorf("with room: %v", got)
	}
}

// An etcd that is full is not mended by waiting.
func TestEtcdIsFull(t *testing.T) {
	w := newWorld(t)
	w.addUpload("app")
	w.records.err = fmt.Errorf("put: %w", rpctypes.ErrNoSpace)
	a := w.do(http.MethodPut, "app", archive(t, map[string]string{"a": "1"}))
	if cause, _ := a.cause(t); a.code != http.StatusInsufficientStorage || cause != "EtcdNoSpace" || !strings.Contains(string(a.body), "etcd-recover") {
		t.Errorf("%d: %s", a.code, a.body)
	}
	if got := full(w.now("app")); got != "" {
		t.Errorf("StorageFull is %q", got)
	}
}

func TestNamespaceHasItsShare(t *testing.T) {
	w := newWorld(t)
	for i, name := range []string{"a", "b", "c"} {
		w.addUpload(name).UID = types.UID(fmt.Sprint(i))
	}
	body := func(name string, size int) []byte {
		return archive(t, map[string]string{name: strings.Repeat(name, size)})
	}
	put := func(name string, body []byte, code int) {
		t.Helper()
		a := w.do(http.MethodPut, name, body)
		if a.code != code {
			t.Fatalf("%s: %d in place of %d: %s", name, a.code, code, a.body)
		}
		if code != http.StatusForbidden {
			return
		}
		if cause, _ := a.cause(t); cause != "ContentQuotaExceeded" || !strings.Contains(string(a.body), "exceeded quota") {
			t.Errorf("%s: %s", name, a.body)
		}
	}
	put("a", body("a", 10), http.StatusCreated)
	size := Bytes(&w.now("a").Status)
	w.rest.MaxBytesPerNamespace = 2*size + size/2
	put("b", body("b", 10), http.StatusCreated)
	files := len(w.files())

	// The same bytes as a's count for c as well.
	put("c", body("a", 10), http.StatusForbidden)
	// b's old content would stay in its history.
	put("b", body("c", 10), http.StatusForbidden)
	if got := len(w.files()); got != files {
		t.Errorf("%d files were left", got-files)
	}
	// What is there already takes no more.
	put("b", body("b", 10), http.StatusOK)
	if got := w.do(http.MethodGet, "b", nil); got.code != http.StatusOK {
		t.Errorf("reading is answered with %d", got.code)
	}
	// Beyond the bound, as when that was lowered, a bundle may become smaller, and no larger.
	w.classes["raw"].RevisionHistoryLimit = new(int32)
	w.rest.MaxBytesPerNamespace = 1
	put("b", body("b", 9), http.StatusOK)
	put("b", archive(t, map[string]string{"x": "1", "y": "2", "z": "3"}), http.StatusForbidden)
	put("c", body("c", 1), http.StatusForbidden)
	// Another bundle that goes makes room.
	delete(w.bundles.all, "a")
	w.rest.MaxBytesPerNamespace = 2 * size
	put("c", body("c", 10), http.StatusCreated)
}

// What two writers bring at the same time is counted when the second commits.
func TestShareIsCountedAgainAtTheCommit(t *testing.T) {
	w := newWorld(t)
	w.addUpload("a").UID = "1"
	w.addUpload("b").UID = "2"
	w.rest.MaxBytesPerNamespace = 300
	grow := &rukpak.ContentStatus{Digest: "sha256:x", Size: 299}
	w.rest.Stores["default"] = creating{w.store, func() { w.bundles.all["b"].Status.Content = grow }}
	a := w.do(http.MethodPut, "a", archive(t, map[string]string{"a": "1"}))
	if cause, _ := a.cause(t); a.code != http.StatusForbidden || cause != "ContentQuotaExceeded" {
		t.Errorf("%d: %s", a.code, a.body)
	}
	if len(w.records.all) != 0 {
		t.Errorf("records are left: %v", w.records.all)
	}
}

// creating calls a function when a blob is begun.
type creating struct {
	content.Store
	then func()
}

func (c creating) Create(ctx context.Context) (content.Writer, error) {
	c.then()
	return c.Store.Create(ctx)
}
