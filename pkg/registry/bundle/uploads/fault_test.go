// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package uploads

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/content/collect"
	"rukpak.io/apiserver/pkg/content/etcdtest"
	"rukpak.io/apiserver/pkg/content/upload"
)

// raw sends the beginning of a PATCH over a connection of its own.
func (w *world) raw(replica int, path string, offset, length int, body string) net.Conn {
	w.t.Helper()
	return w.start(replica, fmt.Sprintf("PATCH %s HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nUpload-Offset: %d\r\nUpload-Complete: ?1\r\nContent-Length: %d\r\n\r\n%s", path, partialUpload, offset, length, body))
}

// start sends the beginning of a request over a connection of its own.
func (w *world) start(replica int, request string) net.Conn {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.replicas[replica].server.Listener.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := io.WriteString(conn, request); err != nil {
		w.t.Fatal(err)
	}
	return conn
}

// hangUp ends a request early, and returns the answer.
func (w *world) hangUp(conn net.Conn) string {
	w.t.Helper()
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		w.t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		w.t.Fatal(err)
	}
	return string(answer)
}

func TestTheBeginningOfABrokenPartIsKept(t *testing.T) {
	w := newWorld(t)
	body, digest := archive(t, map[string]string{"a": noise(1, 50<<10)})
	path := w.begin()
	at := 0
	for _, n := range []int{1000, 1, 0, 20000} {
		answer := w.hangUp(w.raw(0, path, at, len(body)-at, string(body[at:at+n])))
		at += n
		if !strings.Contains(answer, " 408 ") || !strings.Contains(answer, fmt.Sprintf("Upload-Offset: %d\r\n", at)) || !strings.Contains(answer, "Upload-Complete: ?0") {
			t.Fatalf("broken off after %d bytes: %s", at, answer)
		}
	}
	if w.content() != "" {
		t.Error("the bundle has content")
	}
	if a := w.do(1, http.MethodHead, path, nil); a.offset(t) != int64(at) {
		t.Fatalf("the offset is %d, not %d", a.offset(t), at)
	}
	if a := w.patch(1, path, at, body[at:], true); a.code != http.StatusCreated || w.content() != digest {
		t.Errorf("%d %s", a.code, a.body)
	}
}

// What a part has brought when the server ends is kept, and the client is told so.
func TestTheEndOfTheServerKeepsWhatHasCome(t *testing.T) {
	w := newWorld(t)
	body, digest := archive(t, map[string]string{"a": noise(1, 50<<10)})
	path := w.begin()
	conn := w.raw(0, path, 0, len(body), string(body[:5000]))
	waitUntil(t, func() bool { return w.store.written.Load() == 5000 })
	w.replicas[0].EndAppends()
	said, err := io.ReadAll(conn)
	if err := errors.Join(err, conn.Close()); err != nil {
		t.Fatal(err)
	}
	if answer := string(said); !strings.Contains(answer, " 408 ") || !strings.Contains(answer, "Upload-Offset: 5000\r\n") || !strings.Contains(answer, "the server ends") {
		t.Errorf("%s", answer)
	}
	// Of one that comes later nothing is read.
	if answer := w.hangUp(w.raw(0, path, 5000, len(body)-5000, "x")); !strings.Contains(answer, "Upload-Offset: 5000\r\n") || !strings.Contains(answer, "the server ends") {
		t.Errorf("%s", answer)
	}
	if a := w.patch(1, path, 5000, body[5000:], true); a.code != http.StatusCreated || w.content() != digest {
		t.Errorf("%d %s", a.code, a.body)
	}
}

// A request that is refused for its head is heard out, so that its client is not left with a broken connection.
func TestARefusalIsHeard(t *testing.T) {
	w := newWorld(t)
	path := w.begin()
	body := strings.Repeat("x", 8<<20)
	for range 5 {
		if a := w.patch(0, path, 7, []byte(body), false); a.code != http.StatusConflict || a.offset(t) != 0 {
			t.Fatalf("%d %s", a.code, a.body)
		}
	}
}

// A client that has lost its connection comes again before the server knows.
func TestAClientThatComesAgainEndsItsOwnRequest(t *testing.T) {
	client := etcdtest.Start(t)
	for _, method := range []string{http.MethodHead, http.MethodPatch, http.MethodDelete} {
		t.Run(method, func(t *testing.T) {
			w := newWorldIn(t, client)
			path := w.begin()
			conn := w.raw(0, path, 0, 1<<20, strings.Repeat("x", 5000))
			defer conn.Close()
			waitUntil(t, func() bool {
				r := w.replicas[0]
				r.mu.Lock()
				defer r.mu.Unlock()
				return len(r.running) == 1
			})
			switch method {
			case http.MethodHead:
				at := w.do(0, http.MethodHead, path, nil).offset(t)
				// What was said stays so.
				if a := w.do(0, http.MethodHead, path, nil); a.offset(t) != at {
					t.Errorf("first it was %d, then %d", at, a.offset(t))
				}
			case http.MethodPatch:
				if a := w.patch(0, path, 5000, []byte("y"), false); a.code == http.StatusNoContent {
					if a.offset(t) != 5001 {
						t.Errorf("the offset is %d", a.offset(t))
					}
				} else if a.code != http.StatusConflict || a.offset(t) > 5000 {
					t.Errorf("%d %v %s", a.code, a.header, a.body)
				}
			case http.MethodDelete:
				if a := w.do(0, http.MethodDelete, path, nil); a.code != http.StatusNoContent {
					t.Errorf("%d %s", a.code, a.body)
				}
				if held := w.held(); len(held) > 0 {
					t.Errorf("parts are held by %v", held)
				}
			}
		})
	}
}

func waitUntil(t *testing.T, check func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !check() {
		if time.Now().After(deadline) {
			t.Fatal("it does not come to that")
		}
		time.Sleep(time.Millisecond)
	}
}

// Another replica appends at the same offset while a part is being stored: one of them counts.
func TestOfTwoPartsAtOneOffsetOneCounts(t *testing.T) {
	client := etcdtest.Start(t)
	for name, other := range map[string][]byte{"other bytes": []byte("other"), "the same bytes": []byte("these")} {
		t.Run(name, func(t *testing.T) {
			w := newWorldIn(t, client)
			path := w.begin()
			var first answer
			w.store.meanwhile = func() { first = w.patch(1, path, 0, other, false) }
			second := w.patch(0, path, 0, []byte("these"), false)
			if first.code != http.StatusNoContent || second.code != http.StatusConflict || second.offset(t) != 5 || second.cause() != string(CauseMismatchingOffset) {
				t.Errorf("%d %s, %d %v %s", first.code, first.body, second.code, second.header, second.body)
			}
			s := w.session(path)
			if held := w.held(); len(s.Parts) != 1 || !slices.Equal(held, []string{s.Ref(s.Parts[0]).BundleUID}) {
				t.Errorf("of %+v held are %v", s.Parts, held)
			}
		})
	}
}

// Many clients send the same upload at once, to both replicas, each wherever it is told that the upload ends. A request
// ends the one before, so they have to wait, as clients do, or none gets anywhere.
func TestARace(t *testing.T) {
	w := newWorld(t)
	body, digest := archive(t, map[string]string{"a": noise(1, 60<<10)})
	path := w.begin()
	const step = 10 << 10
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			most := 5 * time.Millisecond
			for at := 0; ; {
				end := min(at+step, len(body))
				a, err := w.try(i%2, http.MethodPatch, path, strings.NewReader(string(body[at:end])), patchHeaders(at, end == len(body))...)
				if err != nil || a.code != http.StatusNoContent {
					time.Sleep(rand.N(most))
					most = min(2*most, time.Second)
				} else {
					most = 5 * time.Millisecond
				}
				if err != nil {
					continue // interrupted by another
				}
				switch a.code {
				case http.StatusCreated, http.StatusOK:
					return
				case http.StatusBadRequest: // another has ended it
					if a.cause() == string(CauseCompleted) {
						return
					}
					t.Errorf("%s", a.body)
					return
				case http.StatusNotFound, http.StatusInternalServerError:
					t.Errorf("%d %s", a.code, a.body)
					return
				}
				if a.header.Get(fieldOffset) != "" {
					at = int(a.offset(t))
				}
			}
		})
	}
	wg.Wait()
	if w.content() != digest {
		t.Errorf("the content is %q, not %q", w.content(), digest)
	}
	if held := w.held(); len(held) > 0 {
		t.Errorf("parts are held by %v", held)
	}
}

func TestManySmallPartsAreFew(t *testing.T) {
	w := newWorld(t)
	body, digest := archive(t, map[string]string{"a": noise(1, 10<<10)})
	path := w.begin()
	for at := range len(body) / 256 {
		if a := w.patch(at%2, path, at*256, body[at*256:(at+1)*256], false); a.code != http.StatusNoContent {
			t.Fatalf("%d %s", a.code, a.body)
		}
	}
	if s := w.session(path); len(s.Parts) != 1 || len(w.held()) != 1 {
		t.Errorf("%d parts and %d records", len(s.Parts), len(w.held()))
	}
	if a := w.patch(0, path, len(body), nil, true); a.code != http.StatusCreated || w.content() != digest {
		t.Errorf("%d %s", a.code, a.body)
	}
}

func TestWhatEndsAnUpload(t *testing.T) {
	client := etcdtest.Start(t)
	body, _ := archive(t, map[string]string{"a": "1"})
	for name, test := range map[string]struct {
		meanwhile func(w *world)
		headers   []string
		end       []string // headers of the request that ends it
		body      []byte
		code      int
		cause     string
	}{
		"no archive":          {body: []byte(strings.Repeat("x", 1024)), code: 400, cause: "ContentRefused"},
		"another digest":      {headers: []string{"Repr-Digest", digestField([]byte("x"))}, code: 400},
		"another, at the end": {end: []string{"Repr-Digest", digestField([]byte("x"))}, code: 400},
		"an edited spec":      {meanwhile: func(w *world) { w.change(func(b *rukpak.Bundle) { b.Generation++ }) }, code: 409, cause: "AttemptEnded"},
		"another wanted":      {meanwhile: func(w *world) { w.change(func(b *rukpak.Bundle) { b.Spec.Source.Upload.Digest = "sha256:0" }) }, code: 422, cause: "ContentRefused"},
		"content that is new": {headers: []string{"If-None-Match", "*"}, meanwhile: func(w *world) { w.do(0, http.MethodPost, root, body, fieldComplete, "?1") }, code: 412},
		"another store":       {meanwhile: func(w *world) { w.class.Store = "other" }, code: 409},
		"lost parts":          {meanwhile: func(w *world) { w.removeBlob(w.aPart()) }, code: 409, cause: "UploadLost"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldIn(t, client)
			path := w.begin(test.headers...)
			sent := body
			if test.body != nil {
				sent = test.body
			}
			if a := w.patch(0, path, 0, sent, false); a.code != http.StatusNoContent {
				t.Fatalf("%d %s", a.code, a.body)
			}
			if test.meanwhile != nil {
				test.meanwhile(w)
			}
			first := w.patch(0, path, len(sent), nil, true, test.end...)
			if first.code != test.code || (test.cause != "" && first.cause() != test.cause) {
				t.Fatalf("%d %s", first.code, first.body)
			}
			if name == "another store" {
				return // a class can be mended
			}
			if first.header.Get(fieldComplete) != "?1" {
				t.Errorf("the answer does not say that it is final: %v", first.header)
			}
			if held := w.held(); len(held) > 0 {
				t.Errorf("parts are held by %v", held)
			}
			if again := w.patch(1, path, len(sent), nil, true); again.code != first.code || string(again.body) != string(first.body) {
				t.Errorf("again: %d %s", again.code, again.body)
			}
			if again := w.patch(1, path, len(sent), []byte("more"), true); again.code != first.code || string(again.body) != string(first.body) {
				t.Errorf("again, with a body: %d %s", again.code, again.body)
			}
		})
	}
}

// aPart is the digest of a part of the only upload.
func (w *world) aPart() string {
	for ref, err := range w.sessions.Refs(w.t.Context()) {
		if err != nil {
			w.t.Fatal(err)
		}
		return ref.Digest
	}
	w.t.Fatal("there is no part")
	return ""
}

// A completion that failed for the server's own sake can be tried again.
func TestACompletionIsTriedAgain(t *testing.T) {
	w := newWorld(t)
	body, digest := archive(t, map[string]string{"a": "1"})
	path := w.begin()
	if a := w.patch(0, path, 0, body, false); a.code != http.StatusNoContent {
		t.Fatalf("%d %s", a.code, a.body)
	}
	w.store.create = fmt.Errorf("no disk today")
	if a := w.patch(0, path, len(body), nil, true); a.code != http.StatusServiceUnavailable || a.header.Get(fieldComplete) != "?0" {
		t.Fatalf("%d %v %s", a.code, a.header, a.body)
	}
	w.store.create = nil
	if a := w.patch(1, path, len(body), nil, true); a.code != http.StatusCreated || w.content() != digest {
		t.Errorf("%d %s", a.code, a.body)
	}
}

// A panic over the bytes of an upload is an answer, and neither the end of the server nor that of the upload.
func TestACompletionPanics(t *testing.T) {
	w := newWorld(t)
	body, digest := archive(t, map[string]string{"a": "1"})
	path := w.begin()
	if a := w.patch(0, path, 0, body, false); a.code != http.StatusNoContent {
		t.Fatalf("%d %s", a.code, a.body)
	}
	w.store.meanwhile = func() { panic("a fault") }
	a := w.patch(0, path, len(body), nil, true)
	if a.code != http.StatusInternalServerError || a.header.Get(fieldComplete) != "?0" || !strings.Contains(string(a.body), "the server failed over an upload") {
		t.Fatalf("%d %v %s", a.code, a.header, a.body)
	}
	if a := w.patch(0, path, len(body), nil, true); a.code != http.StatusCreated || w.content() != digest {
		t.Errorf("%d %s", a.code, a.body)
	}
}

// A deadline of the server's own leaves the upload as it is, and the client is told to come again.
func TestAnUploadWhoseBundleIsReadSlowly(t *testing.T) {
	w := newWorld(t)
	body, digest := archive(t, map[string]string{"a": "1"})
	path := w.begin()
	w.bundles.get = fmt.Errorf("etcd: %w", context.DeadlineExceeded)
	for _, request := range []func() answer{
		func() answer { return w.do(0, http.MethodGet, root, nil) },
		func() answer { return w.patch(0, path, 0, body, true) },
	} {
		if a := request(); a.code != http.StatusServiceUnavailable || !strings.Contains(string(a.body), `cannot read the bundle: it took too long`) ||
			!strings.Contains(string(a.body), `"retryAfterSeconds":1`) {
			t.Errorf("%d %s", a.code, a.body)
		}
	}
	w.bundles.get = nil
	if a := w.patch(1, path, 0, body, true); a.code != http.StatusCreated || w.content() != digest {
		t.Errorf("%d %s", a.code, a.body)
	}
}

// A server ends after the commit, before the session says so. What the upload was conditional on has changed by it.
func TestAnUploadThatIsCommittedAlready(t *testing.T) {
	w := newWorld(t)
	body, digest := archive(t, map[string]string{"a": "1"})
	path := w.begin("If-None-Match", "*")
	if a := w.patch(0, path, 0, body, false); a.code != http.StatusNoContent {
		t.Fatalf("%d %s", a.code, a.body)
	}
	before := *w.session(path)
	if a := w.patch(0, path, len(body), nil, true); a.code != http.StatusCreated {
		t.Fatalf("%d %s", a.code, a.body)
	}
	before.Committing = digest
	if err := w.sessions.Remove(t.Context(), w.session(path)); err != nil {
		t.Fatal(err)
	}
	if err := w.sessions.Create(t.Context(), &before); err != nil {
		t.Fatal(err)
	}
	if a := w.patch(1, path, len(body), nil, true); a.code != http.StatusOK || a.header.Get("ETag") != `"`+digest+`"` {
		t.Errorf("%d %s", a.code, a.body)
	}
	if w.session(path).Outcome == nil {
		t.Error("it has not ended")
	}
}

func TestExpiry(t *testing.T) {
	w := newWorld(t)
	empty, old, fresh, gone := w.begin(), w.begin(), w.begin(), ""
	w.bundles.all["gone"] = newBundle("gone", "uid-2")
	other := strings.Replace(root, "/app/", "/gone/", 1)
	gone = w.do(0, http.MethodPost, other, []byte("bytes"), fieldComplete, "?0").location(t, other)
	w.patch(0, old, 0, []byte("some bytes"), false)
	w.patch(0, fresh, 0, []byte("some bytes"), false)
	expire := func() {
		t.Helper()
		if err := w.replicas[0].Expire(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	check := func(path string, code int) {
		t.Helper()
		if a := w.do(1, http.MethodHead, path, nil); a.code != code {
			t.Errorf("%s: %d", path, a.code)
		}
	}
	expire()
	if len(w.held()) != 3 {
		t.Fatalf("parts are held by %v", w.held())
	}
	delete(w.bundles.all, "gone")
	w.pass(2 * time.Hour)
	check(empty, http.StatusNotFound) // before anybody has removed it
	expire()
	check(old, http.StatusOK)
	w.bundles.all["gone"] = newBundle("gone", "uid-2")
	check(gone, http.StatusNotFound)
	w.pass(12 * time.Hour)
	w.patch(0, fresh, 10, []byte("more"), false)
	w.pass(12 * time.Hour)
	expire()
	check(old, http.StatusNotFound)
	check(fresh, http.StatusOK)
	if s := w.session(fresh); !slices.Equal(w.held(), []string{s.Ref(s.Parts[0]).BundleUID}) {
		t.Errorf("parts are held by %v", w.held())
	}
	// Deleting the bundle ends its uploads.
	w.replicas[1].Release(w.bundles.all["app"])
	if held := w.held(); len(held) > 0 {
		t.Errorf("parts are held by %v", held)
	}
	check(fresh, http.StatusNotFound)
}

// An upload that goes on, or is completed, while those that have expired are looked for has not expired.
func TestAnUploadGoesOnWhileOthersExpire(t *testing.T) {
	client := etcdtest.Start(t)
	body, digest := archive(t, map[string]string{"a": "1"})
	for name, complete := range map[string]bool{"it goes on": false, "it is completed": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorldIn(t, client)
			path := w.begin()
			w.patch(0, path, 0, body[:10], false)
			w.pass(24*time.Hour - time.Second)
			w.bundles.meanwhile = func() {
				if a := w.patch(1, path, 10, body[10:], complete); a.code != http.StatusNoContent && a.code != http.StatusCreated {
					t.Errorf("%d %s", a.code, a.body)
				}
				w.pass(2 * time.Second)
			}
			if err := w.replicas[0].Expire(t.Context()); err != nil {
				t.Fatal(err)
			}
			if s := w.session(path); s.Offset() != int64(len(body)) || (s.Outcome != nil) != complete {
				t.Errorf("it is %+v", s)
			}
			if a := w.patch(1, path, len(body), nil, true); a.code != http.StatusCreated && a.code != http.StatusOK || w.content() != digest {
				t.Errorf("%d %s", a.code, a.body)
			}
		})
	}
}

// Parts that are missing from a store that may be another's are not lost: the upload goes on when the right one is back.
func TestPartsAreMissingFromAStoreThatMayBeAnothers(t *testing.T) {
	client := etcdtest.Start(t)
	body, digest := archive(t, map[string]string{"a": "1"})
	for name, test := range map[string]struct {
		sent     int // before they are missing
		complete bool
	}{
		"it goes on":      {10, false},
		"it is completed": {len(body), true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldIn(t, client)
			path := w.begin()
			if a := w.patch(0, path, 0, body[:test.sent], false); a.code != http.StatusNoContent {
				t.Fatalf("%d %s", a.code, a.body)
			}
			part := w.blob(w.aPart())
			if err := os.Rename(part, part+".away"); err != nil {
				t.Fatal(err)
			}
			var asked string
			w.replicas[0].Whole = func(_ context.Context, store string) error {
				asked = store
				return errors.New("the store belongs to another instance")
			}
			if a := w.patch(0, path, test.sent, body[test.sent:], test.complete); a.code != http.StatusServiceUnavailable ||
				a.header.Get(fieldComplete) != "?0" || !strings.Contains(string(a.body), "belongs to another") || asked != "default" {
				t.Fatalf("%d %v %s, of store %q", a.code, a.header, a.body, asked)
			}
			w.replicas[0].Whole = nil
			if err := os.Rename(part+".away", part); err != nil {
				t.Fatal(err)
			}
			if a := w.patch(0, path, test.sent, body[test.sent:], true); a.code != http.StatusCreated || w.content() != digest {
				t.Errorf("%d %s", a.code, a.body)
			}
		})
	}
}

// The collector leaves the parts of open uploads alone however old they are, and takes those of ended ones.
func TestTheCollectorAndParts(t *testing.T) {
	w := newWorld(t)
	const grace = time.Minute
	collector, err := collect.New(collect.Config{
		StoreName: "default", Store: w.store, Records: w.records, Now: w.clock, Grace: grace, Hold: time.Hour, HoldAbove: 20,
		Live: w.live,
	})
	if err != nil {
		t.Fatal(err)
	}
	rounds := func() (last collect.Report) {
		t.Helper()
		for range 4 {
			w.pass(2 * grace)
			if last, err = collector.Collect(t.Context()); err != nil || last.Failures > 0 {
				t.Fatal(err, last)
			}
		}
		return last
	}
	const step = 5 << 20
	body, digest := archive(t, map[string]string{"a": noise(1, 5*step)})
	path := w.begin()
	for at := 0; at < len(body); at += step {
		if a := w.patch(0, path, at, body[at:min(at+step, len(body))], false); a.code != http.StatusNoContent {
			t.Fatalf("%d %s", a.code, a.body)
		}
	}
	if r := rounds(); r.Blobs != len(w.session(path).Parts) || len(r.Missing) > 0 {
		t.Fatalf("of %d parts %d blobs are left: %+v", len(w.session(path).Parts), r.Blobs, r)
	}
	if a := w.patch(1, path, len(body), nil, true); a.code != http.StatusCreated || w.content() != digest {
		t.Fatalf("%d %s", a.code, a.body)
	}
	if r := rounds(); r.Blobs != 1 || r.Refs != 1 {
		t.Errorf("after the end: %+v", r)
	}
}

// live is what the API names.
func (w *world) live(ctx context.Context) (map[collect.Pair]struct{}, error) {
	pairs := map[collect.Pair]struct{}{}
	if c := w.content(); c != "" {
		pairs[collect.Pair{BundleUID: "uid-1", Digest: c}] = struct{}{}
	}
	for ref, err := range w.sessions.Refs(ctx) {
		if err != nil {
			return nil, err
		}
		pairs[collect.Pair{BundleUID: ref.BundleUID, Digest: ref.Digest}] = struct{}{}
	}
	return pairs, nil
}

func FuzzFields(f *testing.F) {
	f.Add("?1", "0", "10", "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:")
	f.Add("?0;a=b", " 999999999999999 ", "-1", "sha-256=:")
	f.Add("1", "1000000000000000", "1e3", "sha-512=::, sha-256=x")
	f.Fuzz(func(t *testing.T, complete, offset, length, digest string) {
		h := http.Header{fieldComplete: {complete}, fieldOffset: {offset}, fieldLength: {length}, "Content-Digest": {digest}}
		got, err := parseFields(h)
		if err != nil && !apierrors.IsBadRequest(err) {
			t.Errorf("the error is %v", err)
		}
		if got.offset < none || got.length < none || (got.complete && !got.said) || (got.digest != nil && len(got.digest) != 32) {
			t.Errorf("%+v", got)
		}
		if err := upload.CheckID(offset); err == nil && len(offset) != 26 {
			t.Errorf("%q is an ID", offset)
		}
	})
}
