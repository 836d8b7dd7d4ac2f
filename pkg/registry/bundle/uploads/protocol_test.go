// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package uploads

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"testing"
	"time"

	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/content"
)

// Two replicas take turns with the parts of one upload.
func TestAnyReplicaGoesOn(t *testing.T) {
	w := newWorld(t)
	body, digest := archive(t, map[string]string{"a": noise(1, 300<<10), "b": noise(2, 100)})
	path := w.begin(fieldLength, fmt.Sprint(len(body)), "Repr-Digest", digestField(body))
	const step = 100 << 10
	turn := 0
	for at := 0; at < len(body); at += step {
		end := min(at+step, len(body))
		a := w.patch(turn%2, path, at, body[at:end], end == len(body), "Content-Digest", digestField(body[at:end]))
		turn++
		if end < len(body) {
			if a.code != http.StatusNoContent || a.offset(t) != int64(end) || a.header.Get(fieldComplete) != "?0" {
				t.Fatalf("part that begins at %d: %d %v %s", at, a.code, a.header, a.body)
			}
			head := w.do(turn%2, http.MethodHead, path, nil)
			if head.code != http.StatusOK || head.offset(t) != int64(end) || head.header.Get(fieldLength) != fmt.Sprint(len(body)) ||
				head.header.Get("Cache-Control") != "no-store" || !strings.Contains(head.header.Get(fieldLimit), "max-age=86400") ||
				!strings.Contains(head.header.Get(fieldLimit), fmt.Sprintf("max-size=%d", 40<<20)) {
				t.Fatalf("HEAD after byte %d: %d %v", end, head.code, head.header)
			}
			continue
		}
		if a.code != http.StatusCreated || a.header.Get("ETag") != `"`+digest+`"` || a.header.Get(fieldComplete) != "?1" || !strings.Contains(string(a.body), digest) {
			t.Fatalf("the last part: %d %v %s", a.code, a.header, a.body)
		}
	}
	if w.content() != digest {
		t.Errorf("the content is %q, not %q", w.content(), digest)
	}
	b, err := w.bundles.Get(genericapirequest.WithNamespace(t.Context(), "team"), "app")
	if err != nil || b.Status.ResolvedSource.Upload.Username != "jane" {
		t.Errorf("taken from %+v, %v", b.Status.ResolvedSource, err)
	}
	if held := w.held(); len(held) > 0 {
		t.Errorf("parts are still held by %v", held)
	}
	// The answer was lost: the request comes again, anywhere.
	for i := range 2 {
		again := w.patch(i, path, len(body), nil, true)
		if again.code != http.StatusOK || again.header.Get("ETag") != `"`+digest+`"` || again.header.Get(fieldComplete) != "?1" {
			t.Errorf("the request that ended it, again: %d %v %s", again.code, again.header, again.body)
		}
	}
	if a := w.patch(0, path, len(body), []byte("more"), true); a.code != http.StatusBadRequest || a.cause() != string(CauseCompleted) {
		t.Errorf("more after the end: %d %s", a.code, a.body)
	}
	if a := w.do(1, http.MethodGet, path, nil); a.offset(t) != int64(len(body)) || a.header.Get(fieldComplete) != "?1" {
		t.Errorf("GET after the end: %v %s", a.header, a.body)
	}
	w.pass(time.Hour)
	if a := w.do(1, http.MethodGet, path, nil); a.code != http.StatusNotFound {
		t.Errorf("GET long after the end: %d", a.code)
	}
}

func TestAllInOneRequest(t *testing.T) {
	w := newWorld(t)
	body, digest := archive(t, map[string]string{"a": "1"})
	a := w.do(0, http.MethodPost, root, body, fieldComplete, "?1", "Repr-Digest", digestField(body))
	if a.code != http.StatusCreated || w.content() != digest || a.header.Get(fieldComplete) != "?1" {
		t.Errorf("%d %v %s", a.code, a.header, a.body)
	}
	// With the beginning in the first request.
	body, digest = archive(t, map[string]string{"a": "2"})
	a = w.do(0, http.MethodPost, root, body[:100], fieldComplete, "?0", fieldLength, fmt.Sprint(len(body)))
	if a.code != http.StatusCreated || a.offset(t) != 100 {
		t.Fatalf("%d %v %s", a.code, a.header, a.body)
	}
	var v view
	if err := json.Unmarshal(a.body, &v); err != nil || v.Offset != 100 || *v.Length != int64(len(body)) || v.Location != a.location(t, root) {
		t.Errorf("the body says %+v, %v", v, err)
	}
	if a := w.do(0, http.MethodPost, root+"/", nil); a.location(t, root+"/") != root+"/"+a.header.Get("Location") {
		t.Errorf("the location is %q", a.header.Get("Location"))
	}
	// Its end needs no body.
	if a := w.patch(1, v.Location, 100, body[100:], false); a.code != http.StatusNoContent {
		t.Fatalf("%d %s", a.code, a.body)
	}
	if a := w.patch(1, v.Location, len(body), nil, true); a.code != http.StatusOK || w.content() != digest {
		t.Errorf("%d %s", a.code, a.body)
	}
}

func TestRefusedRequests(t *testing.T) {
	w := newWorld(t)
	part := patchHeaders(0, false)
	for _, test := range []struct {
		name    string
		method  string
		path    string // below an upload; "-" is without an upload
		body    string
		headers []string
		code    int
		cause   string
		says    string
	}{
		{name: "another type", method: "PATCH", headers: append([]string{"Content-Type", "application/json"}, part[2:]...), code: 415, says: partialUpload},
		{name: "no offset", method: "PATCH", headers: []string{"Content-Type", partialUpload, fieldComplete, "?0"}, code: 400, says: fieldOffset},
		{name: "an offset that is none", method: "PATCH", headers: []string{"Content-Type", partialUpload, fieldComplete, "?0", fieldOffset, "-1"}, code: 400, says: fieldOffset},
		{name: "two offsets", method: "PATCH", headers: append([]string{fieldOffset, "0"}, part...), code: 400, says: fieldOffset},
		{name: "no word of the end", method: "PATCH", headers: part[:4], code: 400, says: fieldComplete},
		{name: "another offset", method: "PATCH", headers: patchHeaders(7, false), body: "x", code: 409, cause: "MismatchingUploadOffset"},
		{name: "a condition", method: "PATCH", headers: append([]string{"If-Match", "*"}, part...), code: 400, says: "If-Match"},
		{name: "another condition", method: "PATCH", headers: append([]string{"If-Unmodified-Since", "Fri, 02 Jan 2099 15:04:05 GMT"}, part...), code: 400, says: "If-Unmodified-Since"},
		{name: "a coding", method: "PATCH", headers: append([]string{"Content-Encoding", "gzip"}, part...), code: 400, says: "Content-Encoding"},
		{name: "a digest that is none", method: "PATCH", headers: append([]string{"Content-Digest", "sha-256=x"}, part...), body: "x", code: 400, says: "Content-Digest"},
		{name: "another digest", method: "PATCH", headers: append([]string{"Content-Digest", digestField([]byte("y"))}, part...), body: "x", code: 400, cause: "DigestMismatch"},
		{name: "more than the class allows", method: "PATCH", headers: part, body: strings.Repeat("x", 40<<20+1), code: 413, cause: "LimitExceeded"},
		{name: "a length that the class does not allow", method: "PATCH", headers: append([]string{fieldLength, fmt.Sprint(40<<20 + 1)}, part...), body: "x", code: 413, cause: "LimitExceeded"},
		{name: "more than the length", method: "PATCH", headers: append([]string{fieldLength, "2"}, part...), body: "xyz", code: 400, cause: "InconsistentUploadLength"},
		{name: "the end at another length", method: "PATCH", headers: append([]string{fieldLength, "2"}, patchHeaders(0, true)...), body: "x", code: 400, cause: "InconsistentUploadLength"},
		{name: "of somebody else", method: "GET", headers: []string{"X-User", "joe"}, code: 404, cause: "UploadNotFound"},
		{name: "deleted by somebody else", method: "DELETE", headers: []string{"X-User", "joe"}, code: 404, cause: "UploadNotFound"},
		{name: "no such upload", method: "GET", path: "/" + strings.Repeat("a", 26), code: 404, cause: "UploadNotFound"},
		{name: "no ID", method: "GET", path: "/../x", code: 404, cause: "UploadNotFound"},
		{name: "a PATCH of nothing", method: "PATCH", path: "-", headers: part, code: 405},
		{name: "a DELETE of all", method: "DELETE", path: "-", code: 405},
		{name: "a POST to an upload", method: "POST", code: 405},
		{name: "a new one that is too long", method: "POST", path: "-", headers: []string{fieldLength, fmt.Sprint(40<<20 + 1)}, code: 413, cause: "LimitExceeded"},
		{name: "a new one with a coding", method: "POST", path: "-", headers: []string{"Content-Encoding", "gzip"}, code: 415},
		{name: "a new one on a condition", method: "POST", path: "-", headers: []string{"If-Match", "*"}, code: 412},
		{name: "a new one on a date", method: "POST", path: "-", headers: []string{"If-Unmodified-Since", "Fri, 02 Jan 2099 15:04:05 GMT"}, code: 400, says: "If-Match"},
		{name: "a new one with a digest that is none", method: "POST", path: "-", headers: []string{"Repr-Digest", "sha-256=x"}, code: 400, says: "Repr-Digest"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := w.begin()
			id := path
			switch test.path {
			case "":
			case "-":
				path = root
			default:
				path = root + test.path
			}
			a := w.do(0, test.method, path, []byte(test.body), test.headers...)
			if a.code != test.code || (test.cause != "" && a.cause() != test.cause) || !strings.Contains(string(a.body), test.says) {
				t.Errorf("%d %s", a.code, a.body)
			}
			if s := w.session(id); s.Offset() != 0 {
				t.Errorf("%d bytes were taken", s.Offset())
			}
			if test.code == 409 && a.offset(t) != 0 {
				t.Errorf("the offset is said to be %d", a.offset(t))
			}
			if a := w.do(1, http.MethodDelete, id, nil); a.code != http.StatusNoContent {
				t.Errorf("DELETE: %d %s", a.code, a.body)
			}
		})
	}
	if held := w.held(); len(held) > 0 {
		t.Errorf("parts are held by %v", held)
	}
}

// Whoever may not PUT the content may not upload it in parts either.
func TestUploadsNeedTheRightToWrite(t *testing.T) {
	w := newWorld(t)
	path := w.begin()
	w.mu.Lock()
	w.mayWrite = false
	w.mu.Unlock()
	for name, a := range map[string]answer{
		"POST":  w.do(0, http.MethodPost, root, nil, fieldComplete, "?0"),
		"PATCH": w.patch(0, path, 0, []byte("x"), false),
	} {
		if a.code != http.StatusForbidden || !strings.Contains(string(a.body), "bundles/content") {
			t.Errorf("%s: %d %s", name, a.code, a.body)
		}
	}
}

// The content of an image is that of its unpack pod.
func TestImagesAreNotUploaded(t *testing.T) {
	w := newWorld(t)
	w.change(func(b *rukpak.Bundle) {
		b.Spec.Source = rukpak.BundleSource{Type: rukpak.SourceTypeImage, Image: &rukpak.ImageSource{Reference: "app"}}
	})
	if a := w.do(0, http.MethodPost, root, nil); a.code != http.StatusForbidden {
		t.Errorf("%d %s", a.code, a.body)
	}
}

func TestListAndAbort(t *testing.T) {
	w := newWorld(t)
	mine := []string{w.begin(), w.begin()}
	w.begin("X-User", "joe")
	w.patch(0, mine[1], 0, []byte("some bytes"), false)
	found := w.listed()
	slices.Sort(found)
	slices.Sort(mine)
	if !slices.Equal(found, mine) {
		t.Errorf("listed are %v, not %v", found, mine)
	}
	for _, path := range mine {
		if a := w.do(1, http.MethodDelete, path, nil); a.code != http.StatusNoContent {
			t.Errorf("DELETE: %d %s", a.code, a.body)
		}
		if a := w.do(0, http.MethodHead, path, nil); a.code != http.StatusNotFound {
			t.Errorf("HEAD after DELETE: %d", a.code)
		}
	}
	if held := w.held(); len(held) > 0 {
		t.Errorf("parts are held by %v", held)
	}
}

func TestTooManyUploads(t *testing.T) {
	w := newWorld(t)
	path := ""
	for range maxOfBundle {
		path = w.begin()
	}
	a := w.do(0, http.MethodPost, root, nil)
	if a.code != http.StatusTooManyRequests || a.cause() != string(CauseTooManyUploads) {
		t.Errorf("%d %s", a.code, a.body)
	}
	w.do(0, http.MethodDelete, path, nil)
	w.begin()
}

func TestAFullStore(t *testing.T) {
	w := newWorld(t)
	path := w.begin()
	w.store.room = fmt.Errorf("%w: 1 byte is free", content.ErrNoSpace)
	for name, a := range map[string]answer{
		"POST":  w.do(0, http.MethodPost, root, nil),
		"PATCH": w.patch(0, path, 0, []byte("x"), false),
	} {
		if a.code != http.StatusInsufficientStorage {
			t.Errorf("%s: %d %s", name, a.code, a.body)
		}
	}
	w.store.room, w.store.create = nil, errors.New("the disk is on fire")
	if a := w.patch(0, path, 0, []byte("x"), false); a.code != http.StatusServiceUnavailable || !strings.Contains(string(a.body), "on fire") {
		t.Errorf("%d %s", a.code, a.body)
	}
	w.store.create = nil
	if a := w.patch(0, path, 0, []byte("x"), false); a.code != http.StatusNoContent {
		t.Errorf("once there is room: %d %s", a.code, a.body)
	}
}

// Who waits for leave to send a part gets the refusal in its place, and leave only when the part is taken.
func TestPartsThatWaitForLeave(t *testing.T) {
	w := newWorld(t)
	path := w.begin()
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ExpectContinueTimeout = time.Minute
	defer transport.CloseIdleConnections()
	for _, test := range []struct {
		name  string
		at    int
		code  int
		leave bool
	}{
		{"where the upload does not end", 7, http.StatusConflict, false},
		{"where it ends", 0, http.StatusNoContent, true},
	} {
		leave := false
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: func() { leave = true }})
		req, err := http.NewRequestWithContext(ctx, http.MethodPatch, w.replicas[0].server.URL+path, strings.NewReader("bytes"))
		if err != nil {
			t.Fatal(err)
		}
		headers := append(patchHeaders(test.at, false), "Expect", "100-continue")
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if err := res.Body.Close(); err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != test.code || leave != test.leave {
			t.Errorf("a part %s: %d, and leave %t", test.name, res.StatusCode, leave)
		}
	}
}
