// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package uploads

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"k8s.io/apimachinery/pkg/api/meta"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/etcdtest"
	"rukpak.io/apiserver/pkg/content/upload"
)

// Somebody else's request to an upload ends none of its owner's.
func TestOthersEndNoRequest(t *testing.T) {
	w := newWorld(t)
	path := w.begin()
	conn := w.raw(0, path, 0, 10, "12345")
	defer conn.Close()
	waitUntil(t, func() bool {
		r := w.replicas[0]
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.running) == 1
	})
	for _, method := range []string{http.MethodHead, http.MethodPatch, http.MethodDelete} {
		if a := w.do(0, method, path, nil, append(patchHeaders(0, false), "X-User", "eve")...); a.code != http.StatusNotFound {
			t.Errorf("%s by another: %d %s", method, a.code, a.body)
		}
	}
	if _, err := io.WriteString(conn, "67890"); err != nil {
		t.Fatal(err)
	}
	if answer := w.hangUp(conn); !strings.Contains(answer, "Upload-Offset: 10\r\n") {
		t.Errorf("the owner's request: %s", answer)
	}
}

// What a full store or etcd is answered with is the same as for PUT.
func TestNoSpace(t *testing.T) {
	client := etcdtest.Start(t)
	for name, test := range map[string]struct {
		err   error
		cause string
		full  bool
	}{
		"the store": {fmt.Errorf("write: %w", content.ErrNoSpace), "StorageFull", true},
		"etcd":      {fmt.Errorf("%w: %w", content.ErrNoSpace, rpctypes.ErrNoSpace), "EtcdNoSpace", false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldIn(t, client)
			path := w.begin()
			w.store.create = test.err
			for range 2 {
				if a := w.patch(0, path, 0, []byte("bytes"), false); a.code != http.StatusInsufficientStorage || a.cause() != test.cause {
					t.Errorf("a part: %d %s", a.code, a.body)
				}
			}
			w.store.room = test.err
			if a := w.do(0, http.MethodPost, root, nil, fieldComplete, "?0"); a.code != http.StatusInsufficientStorage || a.cause() != test.cause {
				t.Errorf("another upload: %d %s", a.code, a.body)
			}
			if full := meta.IsStatusConditionTrue(w.bundles.all["app"].Status.Conditions, v1alpha1.ConditionStorageFull); full != test.full {
				t.Errorf("StorageFull is %v", full)
			}
		})
	}
}

// A store that takes no more parts at the same time takes this one in a moment.
func TestBusyStore(t *testing.T) {
	w := newWorld(t)
	path := w.begin()
	w.store.create = fmt.Errorf("%w: six are under way", content.ErrBusy)
	a := w.patch(0, path, 0, []byte("bytes"), false)
	if text := string(a.body); a.code != http.StatusTooManyRequests || !strings.Contains(text, `"retryAfterSeconds":2`) || !strings.Contains(text, "six are under way") {
		t.Errorf("a part: %d %s", a.code, text)
	}
	w.store.create = nil
	if a := w.patch(0, path, 0, []byte("bytes"), false); a.code != http.StatusNoContent {
		t.Errorf("a part, a moment later: %d %s", a.code, a.body)
	}
}

// The bytes of uploads count as content of their namespace before they are content.
func TestPartsCountAgainstTheNamespace(t *testing.T) {
	w := newWorld(t)
	for _, r := range w.replicas {
		r.whole.MaxBytesPerNamespace = 25 << 10
	}
	one, digest := archive(t, map[string]string{"a": noise(1, 15<<10)})
	two := w.begin()
	path := w.begin()
	refused := func(what string, a answer) {
		t.Helper()
		if a.code != http.StatusForbidden || a.cause() != "ContentQuotaExceeded" {
			t.Errorf("%s: %d %s", what, a.code, a.body)
		}
	}
	refused("an upload that is said to be too large", w.do(0, http.MethodPost, root, nil, fieldComplete, "?0", fieldLength, fmt.Sprint(30<<10)))
	refused("a part that is too large", w.patch(0, path, 0, make([]byte, 26<<10), false))
	for at := 0; at < len(one); at += 8 << 10 {
		if a := w.patch(1, path, at, one[at:min(at+8<<10, len(one))], false); a.code != http.StatusNoContent {
			t.Fatalf("%d %s", a.code, a.body)
		}
	}
	refused("a part of another", w.patch(0, two, 0, make([]byte, 12<<10), false))
	if a, err := w.try(0, http.MethodPatch, two, io.MultiReader(strings.NewReader(noise(2, 12<<10))), patchHeaders(0, false)...); err != nil || a.code != http.StatusForbidden {
		t.Errorf("one whose length is not known: %d %s, %v", a.code, a.body, err)
	}
	// Its own parts are no reason to refuse the content that they become.
	if a := w.patch(0, path, len(one), nil, true); a.code != http.StatusCreated || w.content() != digest {
		t.Fatalf("%d %s", a.code, a.body)
	}
	if a := w.patch(0, two, 0, make([]byte, 5<<10), false); a.code != http.StatusNoContent {
		t.Errorf("what fits: %d %s", a.code, a.body)
	}
}

// Places are shared out among namespaces as for PUT: the last one is for somebody who has none.
func TestPlacesOfPartsAreShared(t *testing.T) {
	w := newWorld(t)
	path := w.begin()
	r := w.replicas[0]
	r.PlaceTimeout = time.Millisecond
	for range maxAppends - 1 {
		if _, err := r.places.Take(t.Context(), "team"); err != nil {
			t.Fatal(err)
		}
	}
	if a := w.patch(0, path, 0, []byte("bytes"), false); a.code != http.StatusTooManyRequests {
		t.Errorf("%d %s", a.code, a.body)
	}
	if _, err := r.places.Take(t.Context(), "other"); err != nil {
		t.Errorf("another namespace: %v", err)
	}
}

// What cannot be read keeps nothing else from expiring, and nothing expires while etcd may be another's.
func TestExpiryGoesOn(t *testing.T) {
	client := etcdtest.Start(t)
	w := newWorldIn(t, client)
	path := w.begin()
	key := w.prefix + "/uploads/open/team/" + "uid-1/" + upload.NewID()
	if _, err := client.Put(t.Context(), key, "{"); err != nil {
		t.Fatal(err)
	}
	w.pass(2 * time.Hour)
	foreign := errors.New("etcd is another's")
	w.replicas[0].Whole = func(context.Context, string) error { return foreign }
	if err := w.replicas[0].Expire(t.Context()); !errors.Is(err, foreign) {
		t.Errorf("in another etcd: %v", err)
	}
	w.session(path)
	w.replicas[0].Whole = nil
	if err := w.replicas[0].Expire(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := w.sessions.Get(t.Context(), upload.Key{Namespace: "team", BundleUID: "uid-1", ID: strings.TrimPrefix(path, root+"/")}); !errors.Is(err, upload.ErrNotFound) {
		t.Errorf("the upload that has expired: %v", err)
	}
	if got, err := client.Get(t.Context(), key); err != nil || got.Count != 1 {
		t.Errorf("the key that cannot be read is gone: %v", err)
	}
	if a := w.do(0, http.MethodGet, root, nil); a.code != http.StatusOK {
		t.Errorf("the list: %d %s", a.code, a.body)
	}
}
