// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/reference"
)

func TestUploads(t *testing.T) {
	w := newWorld(t)
	w.addUpload("app")
	_, first := canonical(t, archive(t, map[string]string{"file": "1"}))
	_, second := canonical(t, archive(t, map[string]string{"file": "2"}))
	compressed, _ := canonical(t, archive(t, map[string]string{"file": "1"}))
	for _, step := range []struct {
		name    string
		body    []byte
		headers []string
		code    int
		digest  string
		history []string
	}{
		{"the first", archive(t, map[string]string{"file": "1"}), nil, 201, first.Digest, nil},
		{"the same again", archive(t, map[string]string{"file": "1"}), nil, 200, first.Digest, nil},
		{"another", archive(t, map[string]string{"file": "2"}), []string{"If-Match", etag(first.Digest), "If-Unmodified-Since", "Mon, 02 Jan 2006 15:04:05 GMT"}, 200, second.Digest, []string{first.Digest}},
		{"the first, compressed, again", compressed, []string{"Content-Digest", contentDigestOf(compressed)}, 200, first.Digest, []string{second.Digest}},
	} {
		got := w.do(http.MethodPut, "app", step.body, step.headers...)
		if got.code != step.code || got.header.Get("ETag") != etag(step.digest) || got.header.Get("Repr-Digest") != reprDigest(step.digest) {
			t.Fatalf("%s: %d %v: %s", step.name, got.code, got.header, got.body)
		}
		b := w.now("app")
		if b.Status.Content.Digest != step.digest || !slices.Equal(digestsOf(b.Status.History), step.history) {
			t.Errorf("%s: content %s, history %v", step.name, b.Status.Content.Digest, digestsOf(b.Status.History))
		}
		if r := b.Status.ResolvedSource; r.Type != rukpak.SourceTypeUpload || r.Upload.Username != "jane" {
			t.Errorf("%s: taken from %+v", step.name, r)
		}
		if !w.records.all[reference.Ref{Store: "default", Digest: step.digest, BundleUID: "uid-1"}] {
			t.Errorf("%s: no record of %s", step.name, step.digest)
		}
	}
	if files := w.files(); len(files) != 2 {
		t.Errorf("the store holds %v", files)
	}
}

func contentDigestOf(body []byte) string {
	sum := sha256.Sum256(body)
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

func TestTheWriteOfAnAttempt(t *testing.T) {
	w := newWorld(t)
	w.addImage("app")
	w.caller = podCaller("team", "unpack", "pod-uid")
	body, summary := canonical(t, archive(t, map[string]string{"file": "1"}))
	if got := w.do(http.MethodPut, "app", archive(t, map[string]string{"file": "1"})); got.code != http.StatusBadRequest {
		t.Errorf("what is not canonical: %d %s", got.code, got.body)
	}
	for i, code := range []int{201, 200} {
		if got := w.do(http.MethodPut, "app", body); got.code != code {
			t.Fatalf("PUT number %d: %d %s", i+1, got.code, got.body)
		}
	}
	b := w.now("app")
	if b.Status.Content.Digest != summary.Digest || b.Status.Unpack.EndTime == nil {
		t.Errorf("status is %+v", b.Status)
	}
	if r := b.Status.ResolvedSource; r.Type != rukpak.SourceTypeImage || r.Image.Reference != b.Spec.Source.Image.Reference {
		t.Errorf("taken from %+v", r)
	}
	other, _ := canonical(t, archive(t, map[string]string{"file": "2"}))
	if got := w.do(http.MethodPut, "app", other); got.code != http.StatusConflict {
		t.Errorf("other content by the same attempt: %d %s", got.code, got.body)
	}
	if w.now("app").Status.Content.Digest != summary.Digest {
		t.Error("the content has changed")
	}
}

// refusal is a write that must change nothing.
type refusal struct {
	change  func(*world, *rukpak.Bundle)
	body    []byte
	headers []string
	code    int
	cause   string
	field   string // of the cause
	says    string // part of the message
}

func refusals(t *testing.T) map[string]refusal {
	good := archive(t, map[string]string{"file": "good"})
	file := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Linkname: "x"} }
	many := map[string]string{}
	for i := range 11 {
		many[fmt.Sprint("file", i)] = ""
	}
	plain := func(w *world, b *rukpak.Bundle) { w.classes["raw"].Provisioner = v1alpha1.ProvisionerPlain }
	const bad = string(CauseContentRefused)
	return map[string]refusal{
		"no tar":             {body: []byte(strings.Repeat("no tar at all ", 100)), code: 400, cause: bad},
		"an empty body":      {body: nil, code: 400, cause: bad},
		"half a gzip":        {body: gzipped(t, good)[:40], code: 400, cause: bad},
		"a name that leaves": {body: rawArchive(t, file("../evil")), code: 422, cause: bad, field: "../evil"},
		"an absolute name":   {body: rawArchive(t, file("/etc/passwd")), code: 422, cause: bad, field: "/etc/passwd"},
		"a link that leaves": {body: rawArchive(t, tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "../../etc"}), code: 422, cause: bad, field: "link"},
		"a device":           {body: rawArchive(t, tar.Header{Name: "null", Typeflag: tar.TypeChar}), code: 422, cause: bad, field: "null"},
		"a duplicate":        {body: rawArchive(t, file("twice"), file("twice")), code: 422, cause: bad, field: "twice"},
		"too many files":     {body: archive(t, many), code: 413, cause: string(CauseLimitExceeded), field: "files"},
		"too many bytes": {body: gzipped(t, archive(t, map[string]string{"file": strings.Repeat("x", 2<<20)})), code: 413,
			cause: string(CauseLimitExceeded), field: "bytes", says: "entry \"file\""},
		"a length that is too large": {body: make([]byte, 2<<20+1), code: 413, cause: string(CauseLimitExceeded), says: "2097153"},
		"a content coding":           {body: good, headers: []string{"Content-Encoding", "gzip"}, code: 415, says: "Content-Encoding"},
		"a part":                     {body: good, headers: []string{"Content-Range", "bytes 0-3/9"}, code: 400, says: "Content-Range"},
		"another digest":             {body: good, headers: []string{"Content-Digest", contentDigestOf([]byte("x"))}, code: 400, says: "Content-Digest"},
		"a digest that is none":      {body: good, headers: []string{"Content-Digest", "sha-256=:eA==:"}, code: 400, says: "Content-Digest"},
		"not what is wanted": {change: func(_ *world, b *rukpak.Bundle) { b.Spec.Source.Upload.Digest = "sha256:" + strings.Repeat("0", 64) },
			body: good, code: 422, cause: bad, field: "spec.source.upload.digest"},
		"a lost update":           {body: good, headers: []string{"If-Match", "\"other\""}, code: 412, says: "If-Match"},
		"unmodified since long":   {body: good, headers: []string{"If-Unmodified-Since", "Mon, 02 Jan 2006 15:04:05 GMT"}, code: 400, says: "If-Match"},
		"unmodified until later":  {body: good, headers: []string{"If-Unmodified-Since", "Fri, 02 Jan 2099 15:04:05 GMT"}, code: 400, says: "If-Match"},
		"unmodified, and another": {body: good, headers: []string{"If-Unmodified-Since", "Fri, 02 Jan 2099 15:04:05 GMT", "If-Match", "\"other\""}, code: 412, says: "If-Match"},
		"a first one that is not": {body: good, headers: []string{"If-None-Match", "*"}, code: 412, says: "If-None-Match"},
		"no manifest":             {change: plain, body: good, code: 422, cause: bad, field: "content", says: "manifest"},
		"a bad manifest":          {change: plain, body: archive(t, map[string]string{"manifests/a.yaml": "kind: [\n"}), code: 422, cause: bad, field: "manifests/a.yaml"},
		"no such class":           {change: func(_ *world, b *rukpak.Bundle) { b.Spec.ProvisionerClassName = "typo" }, body: good, code: 409, cause: "ClassMissing", says: "\"typo\""},
		"no class":                {change: func(_ *world, b *rukpak.Bundle) { b.Spec.ProvisionerClassName = "" }, body: good, code: 409, cause: "ClassMissing"},
		"no such store":           {change: func(w *world, _ *rukpak.Bundle) { w.classes["raw"].Store = "attic" }, body: good, code: 409, cause: "StoreMissing", says: "\"attic\""},
		"a class gone wrong": {change: func(w *world, _ *rukpak.Bundle) { w.classes["raw"].Parameters = map[string]string{"a": "b"} },
			body: good, code: 409, cause: "ClassInvalid"},
		"nobody": {change: func(w *world, _ *rukpak.Bundle) { w.caller = nil }, body: good, code: 401},
		"the source is an image": {change: func(_ *world, b *rukpak.Bundle) {
			b.Spec.Source = rukpak.BundleSource{Type: rukpak.SourceTypeImage, Image: &rukpak.ImageSource{Reference: "app"}}
		}, body: good, code: 403, says: "unpack pod"},
		"a spec that changes meanwhile": {change: func(w *world, _ *rukpak.Bundle) {
			w.caller = &onUse{w: w, then: func(b *rukpak.Bundle) { b.Generation = 2 }}
		}, body: good, code: 409, cause: ended},
		"a full store, at once":       {change: func(w *world, _ *rukpak.Bundle) { w.store.create = fmt.Errorf("create: %w", content.ErrNoSpace) }, body: good, code: 507},
		"a full store, while writing": {change: func(w *world, _ *rukpak.Bundle) { w.store.write = fmt.Errorf("write: %w", content.ErrNoSpace) }, body: good, code: 507},
		"a full store, at the end":    {change: func(w *world, _ *rukpak.Bundle) { w.store.commit = fmt.Errorf("rename: %w", content.ErrNoSpace) }, body: good, code: 507},
		"a busy store":                {change: func(w *world, _ *rukpak.Bundle) { w.store.write = fmt.Errorf("%w: six are under way", content.ErrBusy) }, body: good, code: 429, says: "six are under way"},
		"a broken store":              {change: func(w *world, _ *rukpak.Bundle) { w.store.write = errors.New("input/output error") }, body: good, code: 503, says: "input/output error"},
		"no record can be written":    {change: func(w *world, _ *rukpak.Bundle) { w.records.err = errors.New("no leader") }, body: good, code: 503, says: "no leader"},
	}
}

// onUse is a caller during whose request somebody else changes the bundle: after it was read, before the commit.
type onUse struct {
	w    *world
	then func(*rukpak.Bundle)
}

func (*onUse) GetUID() string                { return "" }
func (*onUse) GetGroups() []string           { return nil }
func (*onUse) GetExtra() map[string][]string { return nil }
func (o *onUse) GetName() string {
	o.w.bundles.Lock()
	defer o.w.bundles.Unlock()
	o.then(o.w.bundles.all["app"])
	return "jane"
}

func gzipped(t *testing.T, in []byte) []byte {
	t.Helper()
	out, _ := canonical(t, in)
	return out
}

func TestARefusedWriteChangesNothing(t *testing.T) {
	for name, test := range refusals(t) {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addUpload("app")
			w.put("app", "old")
			if test.change != nil {
				test.change(w, w.bundles.all["app"])
			}
			before, files := w.now("app").Status, w.files()

			got := w.do(http.MethodPut, "app", test.body, test.headers...)
			s := got.status(t)
			if got.code != test.code || int(s.Code) != test.code {
				t.Fatalf("got %d, want %d: %s", got.code, test.code, got.body)
			}
			if kind, field := got.cause(t); test.cause != "" && (kind != test.cause || field != test.field) {
				t.Errorf("cause %q of field %q, want %q of %q", kind, field, test.cause, test.field)
			}
			if !strings.Contains(s.Message, test.says) || (test.field != "" && !strings.Contains(s.Message, test.field)) {
				t.Errorf("the message is %q", s.Message)
			}
			if (test.code == http.StatusServiceUnavailable || test.code == http.StatusTooManyRequests) && s.Details.RetryAfterSeconds < 1 {
				t.Error("it does not say to come again")
			}
			after := w.now("app").Status
			if full := meta.RemoveStatusCondition(&after.Conditions, v1alpha1.ConditionStorageFull); full != (test.code == http.StatusInsufficientStorage) {
				t.Errorf("StorageFull stands there: %v", full)
			}
			if !apiequality.Semantic.DeepEqual(after, before) {
				t.Errorf("the status has become %+v", after)
			}
			if now := w.files(); !slices.Equal(now, files) {
				t.Errorf("the store holds %v", now)
			}
		})
	}
}

// The bytes are stored when the status is written; whoever was faster there wins.
func TestACommitThatLosesTheRace(t *testing.T) {
	for name, test := range map[string]struct {
		meanwhile func(*rukpak.Bundle)
		headers   func(digest string) []string
		code      int
	}{
		"to a new spec":        {meanwhile: func(b *rukpak.Bundle) { b.Generation = 2 }, code: 409},
		"to a deletion":        {meanwhile: func(b *rukpak.Bundle) { b.DeletionTimestamp = &someTime }, code: 409},
		"to another bundle":    {meanwhile: func(b *rukpak.Bundle) { b.UID = "uid-2" }, code: 409},
		"to another upload":    {meanwhile: func(b *rukpak.Bundle) { b.Status.Content.Digest = "sha256:" + strings.Repeat("f", 64) }, headers: func(d string) []string { return []string{"If-Match", etag(d)} }, code: 412},
		"to nobody, unguarded": {meanwhile: func(*rukpak.Bundle) {}, code: 200},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addUpload("app")
			_, old := w.put("app", "old")
			var headers []string
			if test.headers != nil {
				headers = test.headers(old.Digest)
			}
			var lost *rukpak.Bundle
			w.bundles.meanwhile = func(b *rukpak.Bundle) { test.meanwhile(b); lost = b.DeepCopy() }
			body := archive(t, map[string]string{"file": "new"})
			if got := w.do(http.MethodPut, "app", body, headers...); got.code != test.code {
				t.Fatalf("got %d, want %d: %s", got.code, test.code, got.body)
			}
			if same := apiequality.Semantic.DeepEqual(w.now("app").Status, lost.Status); same != (test.code >= 400) {
				t.Errorf("the status is as the other left it: %v", same)
			}
		})
	}
}

func TestTheImageCannotBeFoundOut(t *testing.T) {
	w := newWorld(t)
	w.addImage("app")
	w.caller = podCaller("team", "unpack", "pod-uid")
	w.rest.Resolve = func(context.Context, *rukpak.Bundle) (string, error) { return "", errors.New("no pods today") }
	body, _ := canonical(t, archive(t, map[string]string{"file": "1"}))
	if got := w.do(http.MethodPut, "app", body); got.code != http.StatusServiceUnavailable || !strings.Contains(got.status(t).Message, "no pods today") {
		t.Errorf("%d %s", got.code, got.body)
	}
	if files := w.files(); len(files) > 0 {
		t.Errorf("the store holds %v", files)
	}
}

// A commit goes on when the client has sent all and left.
func TestACommitOutlivesItsClient(t *testing.T) {
	w := newWorld(t)
	w.addImage("app")
	w.caller = podCaller("team", "unpack", "pod-uid")
	ctx, leave := context.WithCancel(t.Context())
	w.rest.Resolve = func(ctx context.Context, _ *rukpak.Bundle) (string, error) {
		leave()
		return "app", ctx.Err()
	}
	body, summary := canonical(t, archive(t, map[string]string{"file": "1"}))
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, w.server.URL+"/app", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if res, err := w.server.Client().Do(req); err == nil {
		_ = res.Body.Close()
	}
	<-w.served
	if c := w.now("app").Status.Content; c == nil || c.Digest != summary.Digest {
		t.Errorf("content is %+v", c)
	}
}

func TestABodyThatBreaksOff(t *testing.T) {
	body := archive(t, map[string]string{"file": strings.Repeat("x", 5000)})
	for name, send := range map[string]string{
		"with a length": fmt.Sprintf("PUT /app HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body[:1000]),
		"in chunks":     fmt.Sprintf("PUT /app HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", 1000, body[:1000]),
		// The archive is whole, but the digest is of more.
		"after the archive": fmt.Sprintf("PUT /app HTTP/1.1\r\nHost: x\r\nContent-Digest: %s\r\nContent-Length: %d\r\n\r\n%s", contentDigestOf(body), len(body)+100, body),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addUpload("app")
			w.put("app", "old")
			before, files := w.now("app").Status, w.files()
			conn, err := net.Dial("tcp", w.server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, send); err != nil {
				t.Fatal(err)
			}
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(conn)
			if err != nil {
				t.Fatal(err)
			}
			<-w.served
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(answer), " 408 ") || !strings.Contains(string(answer), "ended early") {
				t.Errorf("the answer is %q", answer)
			}
			if !apiequality.Semantic.DeepEqual(w.now("app").Status, before) || !slices.Equal(w.files(), files) {
				t.Errorf("the store holds %v", w.files())
			}
		})
	}
}

// The limits of a class that has none are none.
func TestAClassWithoutLimits(t *testing.T) {
	w := newWorld(t)
	w.classes["raw"].Limits, w.classes["raw"].RevisionHistoryLimit = nil, ptr.To[int32](0)
	w.addUpload("app")
	w.put("app", strings.Repeat("x", 3<<20))
	w.put("app", "y")
	if h := w.now("app").Status.History; len(h) > 0 {
		t.Errorf("history is %v", digestsOf(h))
	}
}

func TestContentDigest(t *testing.T) {
	sum := sha256.Sum256([]byte("x"))
	good := contentDigestOf([]byte("x"))
	for name, test := range map[string]struct {
		values []string
		want   bool // a digest, else none
		err    bool
	}{
		"none":                    {},
		"empty":                   {values: []string{""}},
		"another algorithm":       {values: []string{"sha-512=:eA==:"}},
		"sha-256":                 {values: []string{good}, want: true},
		"one of two":              {values: []string{"sha-512=:eA==:, " + good}, want: true},
		"in two lines":            {values: []string{"sha-512=:eA==:", good}, want: true},
		"no byte sequence":        {values: []string{"sha-256=eA=="}, err: true},
		"one colon":               {values: []string{"sha-256=:"}, err: true},
		"no base64":               {values: []string{"sha-256=:!!:"}, err: true},
		"too short":               {values: []string{"sha-256=:eA==:"}, err: true},
		"an algorithm of its own": {values: []string{"x-sha-256=:eA==:"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := DigestField(test.values)
			if (err != nil) != test.err {
				t.Fatalf("error %v", err)
			}
			if test.want != (got != nil) || (got != nil && !bytes.Equal(got, sum[:])) {
				t.Errorf("got %x", got)
			}
		})
	}
}

func TestTheSubresource(t *testing.T) {
	r := NewREST(Config{Stores: map[string]content.Store{"b": nil, "a": nil}})
	if !slices.Equal(r.storeNames, []string{"a", "b"}) {
		t.Errorf("stores are asked in the order %v", r.storeNames)
	}
	if options, path, key := r.NewConnectOptions(); !path || key != "path" || !apiequality.Semantic.DeepEqual(options, r.New()) {
		t.Errorf("options %+v, a path after it: %v", options, path)
	}
	if m := r.ConnectMethods(); !slices.Equal(m, []string{"GET", "HEAD", "PUT"}) {
		t.Errorf("methods are %v", m)
	}
	if m := r.ProducesMIMETypes("GET"); !slices.Equal(m, []string{"application/gzip"}) {
		t.Errorf("media types are %v", m)
	}
	if _, err := r.Connect(t.Context(), "app", &rukpak.Bundle{}, nil); err == nil {
		t.Error("it takes a bundle for options")
	}
}
