// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// stored is a bundle with content, and a user who may read and write it.
type stored struct {
	namespace, name string
	user            user
	content         []byte
}

func (s stored) path() string { return contentPath(s.namespace, s.name) }

// store makes a bundle, and uploads entries as its content.
func store(t *testing.T, class string, entries ...entry) stored {
	t.Helper()
	s := stored{namespace: newNamespace(t), name: "app", content: canonical(t, entries...)}
	create(t, s.namespace, uploadBundle(s.name, class))
	s.user = newUser(t, s.namespace, rule("bundles", "get", "update", "patch"), rule("bundles/content", "get", "update"))
	direct(t).do(t, http.MethodPut, s.path(), s.user.token, bytes.NewReader(s.content)).expect(t, http.StatusCreated)
	return s
}

// unchanged fails unless the content that was stored is served.
func (s stored) unchanged(t *testing.T, w way) {
	t.Helper()
	r := w.do(t, http.MethodGet, s.path(), s.user.token, nil).expect(t, http.StatusOK)
	if !bytes.Equal(r.body, s.content) {
		t.Errorf("%s: other content is served: %s in place of %s", w.name, digestOf(r.body), digestOf(s.content))
	}
}

func TestReadingContentFollowsHTTP(t *testing.T) {
	s := store(t, "raw", noise("data", 1, 100_000))
	size, tag := len(s.content), `"`+digestOf(s.content)+`"`
	modified := get(t, s.namespace, s.name).Status.Content.UpdateTime.UTC().Format(http.TimeFormat)
	contentRange := func(first, last int) string {
		return "bytes " + strconv.Itoa(first) + "-" + strconv.Itoa(last) + "/" + strconv.Itoa(size)
	}
	const other = `"sha256:0000000000000000000000000000000000000000000000000000000000000000"`
	for _, test := range []struct {
		name    string
		method  string
		headers []string
		code    int
		body    []byte // nil means that there is none
		want    map[string]string
	}{
		{name: "whole", code: 200, body: s.content, want: map[string]string{"Content-Length": strconv.Itoa(size)}},
		{name: "compression is not applied to what is compressed", headers: []string{"Accept-Encoding", "gzip"}, code: 200, body: s.content},
		{name: "head", method: http.MethodHead, code: 200, want: map[string]string{"Content-Length": strconv.Itoa(size)}},
		{name: "range", headers: []string{"Range", "bytes=10-19"}, code: 206, body: s.content[10:20], want: map[string]string{"Content-Range": contentRange(10, 19), "Content-Length": "10"}},
		{name: "open range", headers: []string{"Range", "bytes=" + strconv.Itoa(size-5) + "-"}, code: 206, body: s.content[size-5:], want: map[string]string{"Content-Range": contentRange(size-5, size-1)}},
		{name: "suffix range", headers: []string{"Range", "bytes=-7"}, code: 206, body: s.content[size-7:], want: map[string]string{"Content-Range": contentRange(size-7, size-1)}},
		{name: "range of head", method: http.MethodHead, headers: []string{"Range", "bytes=0-4"}, code: 200, want: map[string]string{"Content-Range": "", "Content-Length": strconv.Itoa(size)}},
		{name: "range of head after the end", method: http.MethodHead, headers: []string{"Range", "bytes=" + strconv.Itoa(size) + "-"}, code: 200, want: map[string]string{"Content-Range": ""}},
		{name: "range after the end", headers: []string{"Range", "bytes=" + strconv.Itoa(size) + "-"}, code: 416, want: map[string]string{"Content-Range": "bytes */" + strconv.Itoa(size)}},
		{name: "if-range with the tag", headers: []string{"Range", "bytes=0-3", "If-Range", tag}, code: 206, body: s.content[:4]},
		{name: "if-range with another tag", headers: []string{"Range", "bytes=0-3", "If-Range", other}, code: 200, body: s.content},
		{name: "if-none-match with the tag", headers: []string{"If-None-Match", tag}, code: 304},
		{name: "if-none-match with a list", headers: []string{"If-None-Match", other + ", " + tag}, code: 304},
		{name: "if-none-match with another tag", headers: []string{"If-None-Match", other}, code: 200, body: s.content},
		{name: "if-match with the tag", headers: []string{"If-Match", tag}, code: 200, body: s.content},
		{name: "if-match with another tag", headers: []string{"If-Match", other}, code: 412},
		{name: "if-modified-since", headers: []string{"If-Modified-Since", modified}, code: 304},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, w := range bothWays(t) {
				method := test.method
				if method == "" {
					method = http.MethodGet
				}
				r := w.do(t, method, s.path(), s.user.token, nil, test.headers...)
				if r.code != test.code {
					t.Fatalf("%s: answer is %d, want %d: %s", w.name, r.code, test.code, short(r.body))
				}
				if test.code < 400 && !bytes.Equal(r.body, test.body) {
					t.Errorf("%s: body has %d bytes, want the %d of the test", w.name, len(r.body), len(test.body))
				}
				for name, want := range test.want {
					if got := r.header.Get(name); got != want {
						t.Errorf("%s: header %s is %q, want %q", w.name, name, got, want)
					}
				}
				if test.code < 300 {
					checkRepresentation(t, w, r, s, modified)
				}
			}
		})
	}
}

// checkRepresentation looks at the header fields that every successful answer has.
func checkRepresentation(t *testing.T, w way, r reply, s stored, modified string) {
	t.Helper()
	for name, want := range map[string]string{
		"ETag": `"` + digestOf(s.content) + `"`, "Repr-Digest": field(s.content), "Content-Type": "application/gzip",
		"Accept-Ranges": "bytes", "Last-Modified": modified, "Content-Encoding": "",
	} {
		if got := r.header.Get(name); got != want {
			t.Errorf("%s: header %s is %q, want %q", w.name, name, got, want)
		}
	}
}

func TestSeveralRangesAreSeveralParts(t *testing.T) {
	s := store(t, "raw", noise("data", 2, 10_000))
	for _, w := range bothWays(t) {
		r := w.do(t, http.MethodGet, s.path(), s.user.token, nil, "Range", "bytes=0-9,100-119").expect(t, http.StatusPartialContent)
		_, params, err := mime.ParseMediaType(r.header.Get("Content-Type"))
		if err != nil {
			t.Fatal(err)
		}
		parts := multipart.NewReader(bytes.NewReader(r.body), params["boundary"])
		for _, want := range [][]byte{s.content[:10], s.content[100:120]} {
			part := must(parts.NextPart())(t)
			if got := must(io.ReadAll(part))(t); !bytes.Equal(got, want) || part.Header.Get("Content-Type") != "application/gzip" {
				t.Errorf("%s: part is %x (%s), want %x", w.name, got, part.Header.Get("Content-Type"), want)
			}
		}
	}
}

func TestContentIsWhatTheStatusSays(t *testing.T) {
	s := store(t, "plain", configMap("one"), configMap("two"))
	b := get(t, s.namespace, s.name)
	c := b.Status.Content
	if c == nil {
		t.Fatal("there is no status.content")
	}
	if c.URI != s.path() || c.Generation != 1 || c.Files != 2 || c.MediaType != "application/gzip" {
		t.Errorf("status.content is %+v", c)
	}
	// As the issue of a user would do it: the path out of the status, the bytes out of kubectl.
	raw := mustKubectl(t, "", "get", "--raw", c.URI)
	if digestOf([]byte(raw)) != c.Digest || int64(len(raw)) != c.Size {
		t.Errorf("kubectl read %d bytes with digest %s, status says %d and %s", len(raw), digestOf([]byte(raw)), c.Size, c.Digest)
	}
	stream := must(shared.Rukpak.RukpakV1alpha1().RESTClient().Get().AbsPath(c.URI).Stream(t.Context()))(t)
	defer stream.Close()
	if streamed := must(io.ReadAll(stream))(t); digestOf(streamed) != c.Digest {
		t.Errorf("client-go read %s, status says %s", digestOf(streamed), c.Digest)
	}
}

func TestEarlierContentIsServedByDigest(t *testing.T) {
	s := store(t, "raw", noise("data", 0, 1000))
	contents := [][]byte{s.content}
	for seed := range uint64(3) {
		next := canonical(t, noise("data", seed+1, 1000))
		direct(t).do(t, http.MethodPut, s.path(), s.user.token, bytes.NewReader(next)).expect(t, http.StatusOK)
		contents = append(contents, next)
	}
	b := get(t, s.namespace, s.name)
	if len(b.Status.History) != 2 {
		t.Fatalf("history has %d contents, the class keeps 2", len(b.Status.History))
	}
	for _, w := range bothWays(t) {
		for i, content := range contents {
			r := w.do(t, http.MethodGet, s.path()+"?digest="+digestOf(content), s.user.token, nil)
			if i == 0 {
				r.expect(t, http.StatusNotFound, digestOf(content))
				continue
			}
			if r.expect(t, http.StatusOK); !bytes.Equal(r.body, content) || r.header.Get("ETag") != `"`+digestOf(content)+`"` {
				t.Errorf("%s: content %d is not what was asked for", w.name, i)
			}
		}
		for _, digest := range []string{"sha256:abc", "md5:d41d8cd98f00b204e9800998ecf8427e", strings.ToUpper(digestOf(s.content)), "app"} {
			w.do(t, http.MethodGet, s.path()+"?digest="+digest, s.user.token, nil).expect(t, http.StatusBadRequest, "digest")
		}
		if uri := b.Status.History[0].URI; digestOf(w.do(t, http.MethodGet, uri, s.user.token, nil).expect(t, http.StatusOK).body) != b.Status.History[0].Digest {
			t.Errorf("%s: %s is not what status.history says", w.name, uri)
		}
	}
}

func TestReadingWhereThereIsNothingSaysWhy(t *testing.T) {
	namespace := newNamespace(t)
	u := newUser(t, namespace, rule("bundles/content", "get"))
	create(t, namespace, uploadBundle("waiting", "raw"))
	create(t, namespace, uploadBundle("lost", "no-such-class"))
	for name, reason := range map[string]string{"waiting": "WaitingForUpload", "lost": "ClassMissing"} {
		for _, w := range bothWays(t) {
			var s metav1.Status
			eventually(t, w.name+" reason", func() string {
				s = w.do(t, http.MethodGet, contentPath(namespace, name), u.token, nil).expect(t, http.StatusConflict, name).status(t)
				if !strings.Contains(s.Message, reason) {
					return s.Message
				}
				return ""
			})
			if s.Reason != metav1.StatusReasonConflict || s.Details == nil || len(s.Details.Causes) < 2 ||
				s.Details.Causes[0].Type != "NoContent" || s.Details.Causes[1].Type != metav1.CauseType(reason) {
				t.Errorf("%s: Status is %+v", w.name, s)
			}
			w.do(t, http.MethodGet, contentPath(namespace, "absent"), u.token, nil).expect(t, http.StatusNotFound, "absent")
		}
	}
}

// Whoever may do all is told what there is to do.
func TestContentKnowsNoOtherMethods(t *testing.T) {
	s := store(t, "raw", noise("data", 3, 100))
	all := newUser(t, s.namespace, rule("bundles/content", "*"), rule("bundles/uploads", "*"))
	uploads := uploadsPath(s.namespace, s.name)
	for _, w := range bothWays(t) {
		for _, method := range []string{http.MethodPost, http.MethodPatch, http.MethodDelete} {
			w.do(t, method, s.path(), s.user.token, strings.NewReader("{}")).expect(t, http.StatusForbidden)
		}
		for path, test := range map[string]struct {
			methods []string
			allow   string
		}{
			s.path():           {[]string{http.MethodPost, http.MethodPatch, http.MethodDelete, http.MethodOptions}, "GET, HEAD, PUT"},
			s.path() + "/data": {[]string{http.MethodPut, http.MethodPost, http.MethodPatch, http.MethodDelete, http.MethodOptions}, "GET, HEAD"},
			uploads:            {[]string{http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions}, "GET, HEAD, POST"},
			uploads + "/id":    {[]string{http.MethodPut, http.MethodPost, http.MethodOptions}, "GET, HEAD, PATCH, DELETE"},
		} {
			for _, method := range test.methods {
				// More than a connection takes after an answer that comes too early.
				r := w.do(t, method, path, all.token, bytes.NewReader(make([]byte, 4<<20))).expect(t, http.StatusMethodNotAllowed)
				if got := r.header.Values("Allow"); len(got) != 1 || got[0] != test.allow {
					t.Errorf("%s: %s %s has Allow %q, want %q", w.name, method, path, got, test.allow)
				}
				if status := r.status(t); status.Reason != metav1.StatusReasonMethodNotAllowed {
					t.Errorf("%s: Status is %+v", w.name, status)
				}
			}
		}
		s.unchanged(t, w)
	}
}
