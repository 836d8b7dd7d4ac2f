// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/reference"
	"rukpak.io/apiserver/pkg/tarball"
)

// put writes content of one file, and returns what is stored of it.
func (w *world) put(name, text string) ([]byte, tarball.Summary) {
	w.t.Helper()
	in := archive(w.t, map[string]string{"file": text})
	if got := w.do(http.MethodPut, name, in); got.code >= 300 {
		w.t.Fatalf("PUT: %d %s", got.code, got.body)
	}
	return canonical(w.t, in)
}

func TestRead(t *testing.T) {
	w := newWorld(t)
	w.addUpload("app")
	w.addUpload("empty").UID = "uid-2"
	_, old := w.put("app", "old")
	bytes2, now := w.put("app", "new")
	tag, size := etag(now.Digest), now.Size
	never := "sha256:" + strings.Repeat("0", 64)
	for name, test := range map[string]struct {
		path    string
		headers []string
		code    int
		body    string // if set, the whole body
		header  map[string]string
	}{
		"all": {path: "app", code: 200, body: string(bytes2), header: map[string]string{
			"Content-Type": "application/gzip", "Content-Encoding": "", "ETag": tag, "Repr-Digest": reprDigest(now.Digest),
			"Content-Length": fmt.Sprint(size), "Accept-Ranges": "bytes", "Last-Modified": "Sun, 09 Sep 2001 01:46:40 GMT",
		}},
		"by its digest":         {path: "app?digest=" + now.Digest, code: 200, body: string(bytes2)},
		"an earlier content":    {path: "app?digest=" + old.Digest, code: 200, header: map[string]string{"ETag": etag(old.Digest), "Repr-Digest": reprDigest(old.Digest)}},
		"a digest unheard of":   {path: "app?digest=" + never, code: 404},
		"no digest":             {path: "app?digest=latest", code: 400},
		"a start":               {path: "app", headers: []string{"Range", "bytes=0-3"}, code: 206, body: string(bytes2[:4]), header: map[string]string{"Content-Range": fmt.Sprintf("bytes 0-3/%d", size), "ETag": tag}},
		"the rest":              {path: "app", headers: []string{"Range", "bytes=4-"}, code: 206, body: string(bytes2[4:])},
		"an end":                {path: "app", headers: []string{"Range", "bytes=-5"}, code: 206, body: string(bytes2[size-5:])},
		"no numbers":            {path: "app", headers: []string{"Range", "bytes=a-b"}, code: 416, header: map[string]string{"Content-Range": fmt.Sprintf("bytes */%d", size)}},
		"beyond the end":        {path: "app", headers: []string{"Range", fmt.Sprintf("bytes=%d-", size)}, code: 416, header: map[string]string{"Content-Range": fmt.Sprintf("bytes */%d", size)}},
		"no bytes at the end":   {path: "app", headers: []string{"Range", "bytes=-0"}, code: 416, header: map[string]string{"Content-Range": fmt.Sprintf("bytes */%d", size)}},
		"some and no bytes":     {path: "app", headers: []string{"Range", "bytes=0-3,-0"}, code: 206, body: string(bytes2[:4])},
		"another unit":          {path: "app", headers: []string{"Range", "entries=0-3"}, code: 200, body: string(bytes2)},
		"a unit in capitals":    {path: "app", headers: []string{"Range", "Bytes=0-3"}, code: 206, body: string(bytes2[:4])},
		"no unit":               {path: "app", headers: []string{"Range", "0-3"}, code: 200, body: string(bytes2)},
		"a range twice":         {path: "app", headers: []string{"Range", "bytes=0-3", "Range", "bytes=5-6"}, code: 200, body: string(bytes2)},
		"too many ranges":       {path: "app", headers: []string{"Range", "bytes=0-0" + strings.Repeat(",0-0", maxRanges)}, code: 200, body: string(bytes2)},
		"if none match":         {path: "app", headers: []string{"If-None-Match", tag}, code: 304, header: map[string]string{"ETag": tag}},
		"a last one too large":  {path: "app", headers: []string{"Range", "bytes=4-99999999999999999999999"}, code: 206, body: string(bytes2[4:])},
		"a first one too large": {path: "app", headers: []string{"Range", "bytes=99999999999999999999999-"}, code: 416},
		"two lines, none match": {path: "app", headers: []string{"If-None-Match", etag(old.Digest), "If-None-Match", tag}, code: 304},
		"two lines, match":      {path: "app", headers: []string{"If-Match", etag(old.Digest), "If-Match", tag}, code: 200},
		"if none match another": {path: "app", headers: []string{"If-None-Match", etag(old.Digest)}, code: 200},
		"if match":              {path: "app", headers: []string{"If-Match", tag}, code: 200},
		"if match another":      {path: "app", headers: []string{"If-Match", etag(old.Digest)}, code: 412},
		"range of this":         {path: "app", headers: []string{"Range", "bytes=0-3", "If-Range", tag}, code: 206, body: string(bytes2[:4])},
		"range of another":      {path: "app", headers: []string{"Range", "bytes=0-3", "If-Range", etag(old.Digest)}, code: 200, body: string(bytes2)},
		"nothing yet":           {path: "empty", code: 409},
		"a digest of nothing":   {path: "empty?digest=" + now.Digest, code: 404},
		"no bundle":             {path: "missing", code: 404},
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			got := w.do(http.MethodGet, test.path, nil, test.headers...)
			if got.code != test.code {
				t.Fatalf("got %d, want %d: %s", got.code, test.code, got.body)
			}
			if test.body != "" && string(got.body) != test.body {
				t.Errorf("got %d bytes that are not the %d wanted", len(got.body), len(test.body))
			}
			for key, want := range test.header {
				if got.header.Get(key) != want {
					t.Errorf("%s: got %q, want %q", key, got.header.Get(key), want)
				}
			}
			if test.code >= 400 {
				if s := got.status(t); int(s.Code) != test.code || got.header.Get("ETag")+got.header.Get("Repr-Digest")+got.header.Get("Last-Modified") != "" {
					t.Errorf("the Status is %+v, the header %v", s, got.header)
				}
			}
			head := w.do(http.MethodHead, test.path, nil, test.headers...)
			if want := ofHead(test.code); head.code != want || len(head.body) > 0 || head.header.Get("Content-Range") != "" {
				t.Errorf("HEAD: %d with %d bytes, not %d: %v", head.code, len(head.body), want, head.header)
			}
			if test.code == 200 && head.header.Get("Content-Length") != got.header.Get("Content-Length") {
				t.Errorf("HEAD: length %q, but GET %q", head.header.Get("Content-Length"), got.header.Get("Content-Length"))
			}
		})
	}
}

// ofHead is the code that HEAD is answered with where GET has another. HEAD has no ranges (RFC 9110, section 14.2).
func ofHead(code int) int {
	if code == http.StatusPartialContent || code == http.StatusRequestedRangeNotSatisfiable {
		return http.StatusOK
	}
	return code
}

func TestNothingToReadSaysWhy(t *testing.T) {
	w := newWorld(t)
	b := w.addUpload("app")
	conditions.SetProgress(&b.Status.Conditions, 1, metav1.ConditionFalse, "PullFailed", "the registry is down")
	got := w.do(http.MethodGet, "app", nil)
	s := got.status(t)
	if got.code != http.StatusConflict || !strings.Contains(s.Message, "PullFailed: the registry is down") || !strings.Contains(s.Message, "\"app\"") {
		t.Errorf("%d: %q", got.code, s.Message)
	}
	if len(s.Details.Causes) != 2 || s.Details.Causes[0].Type != CauseNoContent || s.Details.Causes[1].Type != "PullFailed" {
		t.Errorf("causes are %+v", s.Details.Causes)
	}
	b.Status.Conditions = nil
	if got := w.do(http.MethodGet, "app", nil); got.code != http.StatusConflict {
		t.Errorf("without conditions: %d", got.code)
	}
}

func TestReadWhileTheServerCannot(t *testing.T) {
	for name, breakIt := range map[string]func(*world){
		"etcd is away":      func(w *world) { w.records.err = errors.New("no leader") },
		"the store is away": func(w *world) { w.store.stat = errors.New("input/output error") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addUpload("app")
			w.put("app", "x")
			breakIt(w)
			got := w.do(http.MethodGet, "app", nil)
			if s := got.status(t); got.code != http.StatusServiceUnavailable || s.Details.RetryAfterSeconds < 1 {
				t.Errorf("%d: %+v", got.code, s)
			}
			b := w.now("app")
			w.rest.CheckStored(t.Context(), b)
			if !available(w.now("app")) {
				t.Error("the content is said to be lost")
			}
		})
	}
}

func TestLostContent(t *testing.T) {
	read := func(w *world) {
		got := w.do(http.MethodGet, "app", nil)
		if kind, _ := got.cause(w.t); got.code != http.StatusConflict || kind != string(CauseContentLost) {
			w.t.Errorf("%d: %s", got.code, got.body)
		}
	}
	check := func(w *world) { w.rest.CheckStored(w.t.Context(), w.now("app")) }
	for name, test := range map[string]struct {
		lose func(*world, tarball.Summary)
		find func(*world)
		want bool // that it is still available
	}{
		"a file that is gone, read":       {func(w *world, s tarball.Summary) { w.removeBlob(s.Digest) }, read, false},
		"a file that is gone, checked":    {func(w *world, s tarball.Summary) { w.removeBlob(s.Digest) }, check, false},
		"a file cut short":                {func(w *world, s tarball.Summary) { w.truncate(s.Digest) }, read, false},
		"a record that is gone":           {func(w *world, _ tarball.Summary) { clear(w.records.all) }, read, false},
		"a record of another bundle":      {func(w *world, s tarball.Summary) { w.giveAway(s.Digest) }, read, false},
		"nothing, checked":                {func(*world, tarball.Summary) {}, check, true},
		"one that is another meanwhile":   {func(w *world, s tarball.Summary) { w.removeBlob(s.Digest); w.replaceMeanwhile() }, read, true},
		"a bundle that is made anew":      {func(w *world, s tarball.Summary) { w.removeBlob(s.Digest); w.remakeMeanwhile() }, read, true},
		"a status that cannot be written": {func(w *world, s tarball.Summary) { w.removeBlob(s.Digest); w.bundles.err = errors.New("no leader") }, read, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addUpload("app")
			_, summary := w.put("app", "x")
			test.lose(w, summary)
			test.find(w)
			b := w.now("app")
			if available(b) != test.want {
				t.Errorf("available: %v", available(b))
			}
			if test.want {
				return
			}
			if meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionReady) {
				t.Error("it is ready without its bytes")
			}
			if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionContentAvailable); c.Reason != v1alpha1.ReasonContentLost {
				t.Errorf("the reason is %s", c.Reason)
			}
			w.put("app", "x")
			if got := w.do(http.MethodGet, "app", nil); got.code != http.StatusOK || !available(w.now("app")) {
				t.Errorf("written again: %d", got.code)
			}
		})
	}
}

func (w *world) truncate(digest string) {
	if err := os.Truncate(w.blob(digest), 3); err != nil {
		w.t.Fatal(err)
	}
}

// giveAway leaves the record of the bytes to another bundle.
func (w *world) giveAway(digest string) {
	clear(w.records.all)
	w.records.all[reference.Ref{Store: "default", Digest: digest, BundleUID: "uid-of-another"}] = true
}

func (w *world) replaceMeanwhile() {
	w.bundles.meanwhile = func(b *rukpak.Bundle) { b.Status.Content.Digest = "sha256:" + strings.Repeat("f", 64) }
}

func (w *world) remakeMeanwhile() {
	w.bundles.meanwhile = func(b *rukpak.Bundle) { b.UID = "uid-new" }
}

func TestLostHistoryIsNoLossOfTheContent(t *testing.T) {
	w := newWorld(t)
	w.addUpload("app")
	_, old := w.put("app", "old")
	w.put("app", "new")
	w.removeBlob(old.Digest)
	if got := w.do(http.MethodGet, "app?digest="+old.Digest, nil); got.code != http.StatusConflict {
		t.Errorf("got %d", got.code)
	}
	if got := w.do(http.MethodGet, "app", nil); got.code != http.StatusOK || !available(w.now("app")) {
		t.Errorf("the content: %d", got.code)
	}
}

// Content in a store that the server does not know, because a flag was forgotten or a replica is of an older
// configuration, is neither lost nor to be said so: with the store, all of it is back.
func TestAStoreThatIsNotConfiguredIsNoLoss(t *testing.T) {
	w := newWorld(t)
	w.addUpload("app")
	_, old := w.put("app", "old")
	w.put("app", "new")
	known := w.rest.storeNames
	w.rest.storeNames = nil
	for _, path := range []string{"app", "app?digest=" + old.Digest} {
		if got := w.do(http.MethodGet, path, nil); got.code != http.StatusServiceUnavailable || !strings.Contains(got.status(t).Message, `"default", which is not configured`) {
			t.Errorf("%s: %d %s", path, got.code, got.body)
		}
	}
	w.rest.CheckStored(t.Context(), w.now("app"))
	if b := w.now("app"); !available(b) || len(b.Status.History) != 1 {
		t.Errorf("the status is %+v", b.Status)
	}
	w.rest.storeNames = known
	if got := w.do(http.MethodGet, "app?digest="+old.Digest, nil); got.code != http.StatusOK {
		t.Errorf("with the store: %d %s", got.code, got.body)
	}
}

// A bundle without content, or whose content is known to be lost, is not looked at again.
func TestCheckOfWhatIsNotServed(t *testing.T) {
	w := newWorld(t)
	b := w.addUpload("app")
	w.records.err = errors.New("asked")
	w.rest.CheckStored(t.Context(), b)
	b.Status.Content = &rukpak.ContentStatus{Digest: "sha256:" + strings.Repeat("a", 64)}
	w.bundles.meanwhile = func(*rukpak.Bundle) { t.Error("the status was written") }
	w.rest.CheckStored(t.Context(), b)
}

func TestRelease(t *testing.T) {
	w := newWorld(t)
	w.addUpload("app")
	w.addUpload("other").UID = "uid-2"
	w.put("app", "1")
	w.put("app", "2")
	_, summary := w.put("other", "2")
	released := 0
	w.rest.Released = func() { released++ }

	w.records.err = errors.New("no leader")
	w.rest.Release(w.now("app"))
	w.records.err = nil
	if released != 0 || len(w.records.all) != 3 {
		t.Errorf("without etcd: released %d times, %d records", released, len(w.records.all))
	}
	w.rest.Release(w.now("app"))
	if released != 1 {
		t.Errorf("released %d times", released)
	}
	if len(w.records.all) != 1 || !w.records.all[reference.Ref{Store: "default", Digest: summary.Digest, BundleUID: "uid-2"}] {
		t.Errorf("records are %v", w.records.all)
	}
}

func TestReprDigest(t *testing.T) {
	got := reprDigest("sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
	if want := "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := reprDigest("sha256:xyz"); got != "" {
		t.Errorf("of no digest: %s", got)
	}
}

func TestSeekBeforeTheStart(t *testing.T) {
	b := &blob{size: 3}
	if _, err := b.Seek(-1, 0); err == nil {
		t.Error("no error")
	}
	if at, err := b.Seek(0, 2); at != 3 || err != nil {
		t.Errorf("the end is at %d, %v", at, err)
	}
}

// A large content goes through several chunks, whole.
func TestReadOfManySteps(t *testing.T) {
	w := newWorld(t)
	w.addUpload("app")
	noise := make([]byte, 5*chunkSize)
	for i, x := 0, uint32(1); i < len(noise); i++ {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		noise[i] = byte(x)
	}
	want, _ := w.put("app", string(noise))
	if len(want) < 4*chunkSize {
		t.Fatalf("only %d bytes", len(want))
	}
	if got := w.do(http.MethodGet, "app", nil); !bytes.Equal(got.body, want) {
		t.Errorf("%d bytes, want %d", len(got.body), len(want))
	}
}

// What was said once to be lost is not said again at each read.
func TestALossIsSaidOnce(t *testing.T) {
	w := newWorld(t)
	w.addUpload("app")
	_, summary := w.put("app", "x")
	w.removeBlob(summary.Digest)
	for range 2 {
		if got := w.do(http.MethodGet, "app", nil); got.code != http.StatusConflict {
			t.Fatalf("%d %s", got.code, got.body)
		}
		// Whoever says it a second time fails.
		w.bundles.meanwhile = func(*rukpak.Bundle) { t.Error("it is said again") }
	}
}

// No answer names a file of the server.
func TestAnswersNameNoFiles(t *testing.T) {
	for name, fail := range map[string]func(*faultyStore, error){
		"stat":   func(s *faultyStore, err error) { s.stat = err },
		"open":   func(s *faultyStore, err error) { s.open = err },
		"create": func(s *faultyStore, err error) { s.create = err },
		"write":  func(s *faultyStore, err error) { s.write = fmt.Errorf("%w: %w", content.ErrNoSpace, err) },
		"commit": func(s *faultyStore, err error) { s.commit = err },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addUpload("app")
			w.put("app", "x")
			fail(w.store, fmt.Errorf("disk: %w", &os.PathError{Op: "open", Path: "/srv/secret/blob", Err: syscall.EIO}))
			for _, method := range []string{http.MethodGet, http.MethodPut} {
				if got := w.do(method, "app", archive(t, map[string]string{"a": "1"})); bytes.Contains(got.body, []byte("secret")) {
					t.Errorf("%s: %s", method, got.body)
				} else if got.code >= 500 && !bytes.Contains(got.body, []byte("input/output error")) {
					t.Errorf("%s does not say what is wrong: %s", method, got.body)
				}
			}
		})
	}
}

// A query that means nothing is not taken for something.
func TestQueriesThatMeanNothing(t *testing.T) {
	w := newWorld(t)
	w.addUpload("app")
	w.put("app", "x")
	for query, code := range map[string]int{
		"recursive=maybe": 400, "recursive=False": 400, "recursive=true": 200, "recursive=0": 200, "recursive": 200, "path=a": 400, "path=": 400, "digest=": 400, "digest": 400,
	} {
		if got := w.do(http.MethodGet, "app/?"+query, nil); got.code != code {
			t.Errorf("%s: %d %s", query, got.code, got.body)
		}
	}
}
