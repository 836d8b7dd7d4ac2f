// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package uploads

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/content/etcdtest"
	clientset "rukpak.io/apiserver/pkg/generated/clientset/versioned"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// line is the way from a client to the replicas, which take turns. What goes wrong on it is counted out.
type line struct {
	w    *world
	next http.RoundTripper
	sent int
	// fault, if set, is asked before each request, with its number from 1, what becomes of it.
	fault func(n int, req *http.Request) fault
}

// fault is what becomes of a request. The zero value lets it pass.
type fault struct {
	cut      int64          // the body ends with an error after so many bytes, if not 0
	answer   *http.Response // is given in place of the server's
	unheard  bool           // the server's answer is lost
	meantime func()         // what others do first
}

var errCut = errors.New("the line is cut")

func (l *line) RoundTrip(req *http.Request) (*http.Response, error) {
	l.sent++
	var f fault
	if l.fault != nil {
		f = l.fault(l.sent, req)
	}
	if f.meantime != nil {
		f.meantime()
	}
	if f.answer != nil {
		f.answer.Request = req
		return f.answer, nil
	}
	target, err := url.Parse(l.w.replicas[l.sent%2].server.URL)
	if err != nil {
		return nil, err
	}
	out := req.Clone(req.Context())
	out.URL.Host, out.Host = target.Host, target.Host
	if f.cut > 0 && out.Body != nil {
		out.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(io.LimitReader(out.Body, f.cut), errorReader{}), out.Body}
	}
	response, err := l.next.RoundTrip(out)
	if err == nil && f.unheard {
		_, readErr := io.Copy(io.Discard, response.Body)
		return nil, errors.Join(errCut, readErr, response.Body.Close())
	}
	return response, err
}

type errorReader struct{}

func (errorReader) Read([]byte) (int, error) { return 0, errCut }

func refusalOf(code int, header ...string) *http.Response {
	h := http.Header{}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return &http.Response{StatusCode: code, ProtoMajor: 1, ProtoMinor: 1, Header: h, Body: io.NopCloser(strings.NewReader("service unavailable"))}
}

func (w *world) client(l *line) typed.BundleInterface {
	w.t.Helper()
	config := &rest.Config{Host: w.replicas[0].server.URL, QPS: -1}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		l.w, l.next = w, next
		return l
	})
	client, err := clientset.NewForConfig(config)
	if err != nil {
		w.t.Fatal(err)
	}
	return client.RukpakV1alpha1().Bundles("team")
}

func TestTheClientGoesOn(t *testing.T) {
	client := etcdtest.Start(t)
	every := func(n int, f fault) func(int, *http.Request) fault {
		return func(i int, _ *http.Request) fault {
			if i%n == 0 {
				return f
			}
			return fault{}
		}
	}
	isLast := func(req *http.Request) bool { return req.Header.Get(fieldComplete) == "?1" }
	for name, test := range map[string]struct {
		fault func(w *world) func(int, *http.Request) fault
		size  int
	}{
		"nothing happens":    {size: 3 << 20},
		"nothing at all":     {size: 0},
		"the line is cut":    {size: 3 << 20, fault: func(*world) func(int, *http.Request) fault { return every(2, fault{cut: 100_000}) }},
		"answers are lost":   {size: 2 << 20, fault: func(*world) func(int, *http.Request) fault { return every(3, fault{unheard: true}) }},
		"the server is away": {size: 2 << 20, fault: func(*world) func(int, *http.Request) fault { return every(3, fault{answer: refusalOf(503)}) }},
		"the server is busy": {size: 1 << 20, fault: func(*world) func(int, *http.Request) fault {
			return every(5, fault{answer: refusalOf(429, "Retry-After", "1")})
		}},
		"the last answer is lost": {size: 1 << 20, fault: func(*world) func(int, *http.Request) fault {
			lost := false
			return func(_ int, req *http.Request) fault {
				if isLast(req) && !lost {
					lost = true
					return fault{unheard: true}
				}
				return fault{}
			}
		}},
		"the server loses the upload": {size: 1 << 20, fault: func(w *world) func(int, *http.Request) fault {
			return func(n int, req *http.Request) fault {
				if n != 4 {
					return fault{}
				}
				return fault{meantime: func() { w.replicas[0].Release(w.bundles.all["app"]) }}
			}
		}},
		"bytes are damaged": {size: 1 << 20, fault: func(*world) func(int, *http.Request) fault {
			return func(n int, req *http.Request) fault {
				if n == 3 {
					req.Body = io.NopCloser(io.LimitReader(zeros{}, req.ContentLength))
				}
				return fault{}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldIn(t, client)
			l := &line{}
			if test.fault != nil {
				l.fault = test.fault(w)
			}
			body, digest := archive(t, map[string]string{"a": noise(1, test.size)})
			var sent int64
			b, err := w.client(l).UploadContent(t.Context(), "app", strings.NewReader(string(body)), int64(len(body)), typed.UploadContentOptions{
				ChunkSize: 300_000, Patience: time.Minute, Progress: func(n int64) { sent = n },
			})
			if err != nil || b.Status.Content.Digest != digest || w.content() != digest {
				t.Fatalf("%+v, %v", b, err)
			}
			if sent > int64(len(body)) {
				t.Errorf("%d of %d bytes were sent", sent, len(body))
			}
			if held := w.held(); len(held) > 0 {
				t.Errorf("parts are held by %v", held)
			}
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestTheClientGivesUp(t *testing.T) {
	client := etcdtest.Start(t)
	for name, test := range map[string]struct {
		prepare func(w *world)
		fault   func(int, *http.Request) fault
		body    string
		opts    typed.UploadContentOptions
		check   func(error) bool
	}{
		"no bundle":  {prepare: func(w *world) { delete(w.bundles.all, "app") }, check: apierrors.IsNotFound},
		"no right":   {prepare: func(w *world) { w.mayWrite = false }, check: apierrors.IsForbidden},
		"no archive": {body: strings.Repeat("x", 2000), check: apierrors.IsBadRequest},
		"too large":  {prepare: func(w *world) { w.class.Limits.Files = ptr.To[int64](1) }, check: apierrors.IsRequestEntityTooLargeError},
		"a condition": {prepare: func(w *world) {
			body, _ := archive(w.t, map[string]string{"b": "1"})
			w.do(0, http.MethodPost, root, body, fieldComplete, "?1")
		}, opts: typed.UploadContentOptions{IfNone: true}, check: typed.IsPreconditionFailed},
		"no server": {fault: func(n int, _ *http.Request) fault {
			if n == 1 {
				return fault{}
			}
			return fault{answer: refusalOf(503)}
		}, opts: typed.UploadContentOptions{Patience: time.Second}, check: func(err error) bool {
			return apierrors.IsServiceUnavailable(err) && strings.Contains(err.Error(), "no progress")
		}},
		"no patience": {fault: func(n int, _ *http.Request) fault {
			if n == 2 {
				return fault{answer: refusalOf(503)}
			}
			return fault{}
		}, opts: typed.UploadContentOptions{Patience: -1}, check: apierrors.IsServiceUnavailable},
		"an edited spec": {fault: func(n int, req *http.Request) fault {
			if n == 1 || req.Method == http.MethodDelete {
				return fault{}
			}
			return fault{answer: refusalOf(409)}
		}, check: apierrors.IsConflict},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldIn(t, client)
			if test.prepare != nil {
				test.prepare(w)
			}
			before := w.bundles.all["app"].DeepCopy()
			body := test.body
			if body == "" {
				raw, _ := archive(t, map[string]string{"a": "1", "b": "2"})
				body = string(raw)
			}
			_, err := w.client(&line{fault: test.fault}).UploadContent(t.Context(), "app", strings.NewReader(body), int64(len(body)), test.opts)
			if err == nil || !test.check(err) {
				t.Errorf("the error is %v", err)
			}
			if before != nil && fmt.Sprint(before.Status.Content) != fmt.Sprint(w.bundles.all["app"].Status.Content) {
				t.Error("the content is another")
			}
			if held := w.held(); len(held) > 0 {
				t.Errorf("parts are held by %v", held)
			}
		})
	}
}

func TestTheClientEndsWithItsContext(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	left := errors.New("the user has left")
	l := &line{fault: func(n int, req *http.Request) fault {
		if n == 3 {
			cancel(left)
		}
		return fault{}
	}}
	body, _ := archive(t, map[string]string{"a": noise(1, 1<<20)})
	_, err := w.client(l).UploadContent(ctx, "app", strings.NewReader(string(body)), int64(len(body)), typed.UploadContentOptions{ChunkSize: 100_000})
	if !errors.Is(err, left) {
		t.Errorf("the error is %v", err)
	}
	// What it has begun it takes away.
	for s, err := range w.sessions.All(t.Context()) {
		t.Errorf("left over is %+v, %v", s, err)
	}
}
