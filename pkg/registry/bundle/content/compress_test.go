// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rukpak.io/apiserver/pkg/tarball"
	"rukpak.io/apiserver/pkg/tarball/toc"
)

func TestCompressionOf(t *testing.T) {
	for header, want := range map[string]compression{
		"":                               {},
		"identity":                       {},
		"br":                             {},
		"gzip":                           {accepted: true},
		"x-gzip":                         {accepted: true},
		"GZip":                           {accepted: true},
		"br, gzip;q=0.1":                 {accepted: true},
		"gzip;q=0.001":                   {accepted: true},
		"*":                              {accepted: true},
		"gzip, identity":                 {accepted: true},
		"gzip;q=0.5 , identity;q=0.5":    {accepted: true},
		"gzip;level=1; Q=0.2":            {accepted: true},
		"gzip;q=0.5, identity":           {},
		"gzip;q=0":                       {},
		"gzip;q=0.000, *":                {},
		"gzip;q=0, *;q=0":                {},
		"*;q=0":                          {},
		"identity;q=0":                   {},
		"gzip;q=2":                       {},
		"gzip;q=-1":                      {},
		"gzip;q=NaN":                     {},
		"gzip;q=":                        {},
		"gzipped":                        {},
		"gzip, identity;q=0":             {accepted: true, required: true},
		"gzip;q=0.1, *;q=0":              {accepted: true, required: true},
		"*, identity;q=0":                {accepted: true, required: true},
		"gzip, *;q=0, identity;q=0.5":    {accepted: true},
		"gzip;q=0.5, *;q=0.4, deflate":   {accepted: true},
		"deflate;q=1,gzip;q=1,,identity": {accepted: true},
	} {
		if got := compressionOf(http.Header{"Accept-Encoding": strings.SplitAfter(header, ", ")}); got != want {
			t.Errorf("%q: %+v", header, got)
		}
	}
	if got := compressionOf(http.Header{}); got != (compression{}) {
		t.Errorf("without a header: %+v", got)
	}
}

// manyFiles is a world with a bundle "app" of so many files that their list is long.
func manyFiles(t testing.TB, n int) *world {
	t.Helper()
	w := newWorldOf(t)
	w.classes["raw"].Limits = nil
	w.addUpload("app")
	files := map[string]string{}
	for i := range n {
		files[fmt.Sprintf("dir-%02d/file-%05d.yaml", i%40, i)] = fmt.Sprint("content ", i)
	}
	if got := w.do(http.MethodPut, "app", archive(t, files)); got.code != http.StatusCreated {
		t.Fatalf("PUT: %d %s", got.code, got.body)
	}
	return w
}

func unzipped(t *testing.T, b []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestListsAreCompressed(t *testing.T) {
	w := manyFiles(t, 2000)
	const long, short = "app/?recursive=true", "app/"
	whole, names := w.do(http.MethodGet, long, nil, "Accept-Encoding", "identity"), w.do(http.MethodGet, short, nil, "Accept-Encoding", "identity")
	for name, test := range map[string]struct {
		path, accept string
		want         bool
	}{
		"a long one":              {long, "gzip", true},
		"a long one, as it is":    {long, "gzip;q=0", false},
		"a short one":             {short, "gzip", false},
		"a short one, not as is":  {short, "gzip, identity;q=0", true},
		"the end of a long one":   {long + "&after=dir-39/file-01900.yaml", "gzip", false},
		"neither is what it does": {long, "br, identity;q=0", false},
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			got := w.do(http.MethodGet, test.path, nil, "Accept-Encoding", test.accept)
			encoding, want := "", whole.body
			if test.want {
				encoding, got.body = "gzip", unzipped(t, got.body)
			}
			switch {
			case strings.HasPrefix(test.path, long+"&"):
				want = got.body
			case test.path == short:
				want = names.body
			}
			if got.header.Get("Content-Encoding") != encoding || !bytes.Equal(got.body, want) {
				t.Errorf("%d bytes of %q, not %d", len(got.body), got.header.Get("Content-Encoding"), len(want))
			}
			for _, a := range []answer{got, w.do(http.MethodHead, test.path, nil, "Accept-Encoding", test.accept), w.do(http.MethodGet, test.path, nil, "Accept-Encoding", test.accept, "If-None-Match", whole.header.Get("ETag"))} {
				if a.header.Get("Vary") != "Accept-Encoding" || a.header.Get("ETag") != whole.header.Get("ETag") || a.code == http.StatusNotModified && a.header.Get("Content-Encoding") != "" {
					t.Errorf("%d: %v", a.code, a.header)
				}
			}
		})
	}
	w.t = t
	// As clients in Go ask for it by themselves.
	if got := w.do(http.MethodGet, long, nil); !bytes.Equal(got.body, whole.body) || got.header.Get("Content-Length") != "" {
		t.Errorf("%d bytes: %v", len(got.body), got.header)
	}
	if len(compressing) != 0 {
		t.Errorf("%d are still at it", len(compressing))
	}
	for range maxCompressing {
		compressing <- struct{}{}
	}
	if got := w.do(http.MethodGet, long, nil, "Accept-Encoding", "gzip"); got.header.Get("Content-Encoding") != "" || !bytes.Equal(got.body, whole.body) {
		t.Errorf("beside many others: %v", got.header)
	}
	for range maxCompressing {
		<-compressing
	}
}

// A proxy like that of kube-apiserver passes on what a client takes, and asks for gzip by itself where the client says nothing.
func TestCompressedListsThroughAProxy(t *testing.T) {
	w := manyFiles(t, 2000)
	location, err := url.Parse(w.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	front := httptest.NewServer(&httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(location) }})
	defer front.Close()
	direct := &http.Transport{DisableCompression: true}
	defer direct.CloseIdleConnections()
	whole := w.do(http.MethodGet, "app/?recursive=true", nil, "Accept-Encoding", "identity")
	for _, accept := range []string{"", "gzip", "gzip;q=0"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL+"/app/?recursive=true", nil)
		if err != nil {
			t.Fatal(err)
		}
		if accept != "" {
			req.Header.Set("Accept-Encoding", accept)
		}
		res, err := direct.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(res.Body)
		if err := errors.Join(err, res.Body.Close()); err != nil {
			t.Fatal(err)
		}
		zipped := res.Header.Get("Content-Encoding") == "gzip"
		if zipped {
			got = unzipped(t, got)
		}
		if zipped != (accept == "gzip") || !bytes.Equal(got, whole.body) || res.Header.Get("ETag") != whole.header.Get("ETag") || res.Header.Get("Vary") != "Accept-Encoding" {
			t.Errorf("%q: %d bytes, not %d: %v", accept, len(got), len(whole.body), res.Header)
		}
	}
}

// indexOf is the stored form of the index of a content of n files, and the digest of that.
func indexOf(t *testing.T, n int) (raw []byte, digest string) {
	t.Helper()
	var files []tar.Header
	for i := range n {
		files = append(files, tar.Header{Name: fmt.Sprintf("file-%05d.yaml", i), Mode: 0o644, Typeflag: tar.TypeReg})
	}
	stored, _ := canonical(t, rawArchive(t, files...))
	builder, err := toc.NewBuilder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	summary, err := tarball.VerifyIndexed(t.Context(), bytes.NewReader(stored), tarball.Options{Index: builder})
	if err != nil {
		t.Fatal(err)
	}
	made, _, err := builder.Finish(summary)
	if err != nil {
		t.Fatal(err)
	}
	raw, err = io.ReadAll(made)
	if err := errors.Join(err, builder.Close()); err != nil {
		t.Fatal(err)
	}
	return raw, summary.Digest
}

// What fails before anything was sent leaves nothing behind for the answer that is, also where it would have been compressed.
func TestListThatFailsAtFirst(t *testing.T) {
	raw, digest := indexOf(t, 4000) // more than is read when it is opened
	gone := errors.New("input/output error")
	opened := false
	index, err := toc.Open(t.Context(), digest, func(_ context.Context, offset, length int64) (io.ReadCloser, error) {
		if opened {
			return nil, gone
		}
		if length < 0 {
			length = int64(len(raw)) - offset
		}
		return io.NopCloser(io.NewSectionReader(bytes.NewReader(raw), offset, length)), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	opened = true
	out := newSender(t.Context(), httptest.NewRecorder())
	c := &compressor{compression: compression{accepted: true, required: true}, out: out}
	if err := (&insider{}).writeList(t.Context(), c, index, &toc.Entry{}); !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
	if out.began || len(compressing) != 0 || out.Header().Get("Content-Encoding") != "" {
		t.Errorf("begun %v, %d, %v", out.began, len(compressing), out.Header())
	}
}

// flushes notes how much there is at each flush.
type flushes struct {
	*httptest.ResponseRecorder
	at []int
}

func (f *flushes) Flush() { f.at = append(f.at, f.Body.Len()) }

// Of a list that is long in coming each part is there soon after it is known.
func TestListsThatAreLongInComing(t *testing.T) {
	const files = 2000
	raw, digest := indexOf(t, files)
	for _, accepted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			reads := 0
			index, err := toc.Open(t.Context(), digest, func(_ context.Context, offset, length int64) (io.ReadCloser, error) {
				time.Sleep(2 * listPause)
				reads++
				if length < 0 {
					length = int64(len(raw)) - offset
				}
				return io.NopCloser(io.NewSectionReader(bytes.NewReader(raw), offset, length)), nil
			})
			if err != nil {
				t.Fatal(err)
			}
			reads = 0
			got := &flushes{ResponseRecorder: httptest.NewRecorder()}
			out := newSender(t.Context(), got)
			c := &compressor{compression: compression{accepted: accepted}, out: out}
			if err := errors.Join((&insider{}).writeList(t.Context(), c, index, &toc.Entry{}), out.finish()); err != nil {
				t.Fatal(err)
			}
			entries := func(n int) int {
				r := io.Reader(bytes.NewReader(got.Body.Bytes()[:n]))
				if accepted {
					if r, err = gzip.NewReader(r); err != nil {
						t.Fatal(err)
					}
				}
				part, err := io.ReadAll(r)
				if err != nil && err != io.ErrUnexpectedEOF {
					t.Fatal(err)
				}
				return bytes.Count(part, []byte(`{"name":`))
			}
			last := 0
			for _, n := range got.at {
				now := entries(n)
				if now <= last {
					t.Errorf("%d entries after %d bytes, and %d before", now, n, last)
				}
				last = now
			}
			if all := entries(got.Body.Len()); all != files || len(got.at) < 3 || len(got.at) < reads-2 {
				t.Errorf("compressed %v: %d entries, %d flushes in %d reads", accepted, all, len(got.at), reads)
			}
			if zipped := got.Header().Get("Content-Encoding") == "gzip"; zipped != accepted {
				t.Errorf("compressed %v: %v", accepted, got.Header())
			}
		})
	}
}
