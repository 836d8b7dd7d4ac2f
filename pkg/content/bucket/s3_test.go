// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/bucket"
	"rukpak.io/apiserver/pkg/content/contenttest"
	"rukpak.io/apiserver/pkg/content/s3test"
)

func put(t *testing.T, s content.Store, b contenttest.Blob) string {
	t.Helper()
	digest, err := b.Put(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

// roundTripper is a function as one.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// TestAbsence: only what is certainly not there looks so. To take lost content for what it is, a
// server takes it out of the status of its bundle.
func TestAbsence(t *testing.T) {
	server := s3test.Start(t)
	server.Setenv(t)
	quick := bucket.Options{Pause: time.Millisecond}
	digest := "sha256:" + strings.Repeat("301", 21) + "4" // "301" in the text of an error means much to some
	for _, tc := range []struct {
		name string
		open func() *bucket.Store
		want bool
	}{
		{"no such object", func() *bucket.Store { return open(t, server.Bucket(t, "there", ""), quick) }, true},
		{"no such bucket", func() *bucket.Store {
			u := server.Bucket(t, "gone", "")
			if err := os.Remove(filepath.Join(server.Folder, "gone")); err != nil {
				t.Fatal(err)
			}
			return open(t, u, quick)
		}, false},
		{"no answer", func() *bucket.Store {
			u := server.Bucket(t, "there", "")
			q := u.Query()
			q.Set("endpoint", "https://127.0.0.1:1")
			u.RawQuery = q.Encode()
			return open(t, u, quick)
		}, false},
		{"an authority that is not trusted", func() *bucket.Store {
			u := server.Bucket(t, "there", "")
			q := u.Query()
			q.Del("ca-file")
			u.RawQuery = q.Encode()
			return open(t, u, quick)
		}, false},
		{"a wrong password", func() *bucket.Store {
			t.Setenv("AWS_SECRET_ACCESS_KEY", "another")
			defer server.Setenv(t)
			return open(t, server.Bucket(t, "there", ""), quick)
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := tc.open()
			_, statErr := s.Stat(t.Context(), digest)
			_, openErr := s.Open(t.Context(), digest, 0, -1)
			_, rangeErr := s.Open(t.Context(), digest, 1, 1)
			for method, err := range map[string]error{"stat": statErr, "open": openErr, "range": rangeErr} {
				if err == nil || errors.Is(err, content.ErrNotFound) != tc.want {
					t.Errorf("%s: %v", method, err)
				}
			}
			if mark, err := s.ReadMark(t.Context()); mark != nil || (err == nil) != tc.want {
				t.Errorf("the mark: %q, %v", mark, err)
			}
			if err := s.Delete(t.Context(), digest); (err == nil) != tc.want {
				t.Errorf("delete: %v", err)
			}
			if err := s.Walk(t.Context(), func(content.Info) error { return nil }); (err == nil) != tc.want {
				t.Errorf("walk: %v", err)
			}
		})
	}
}

// cut ends the bodies of answers early.
type cut struct {
	io.ReadCloser
	rest int
}

func (c *cut) Read(p []byte) (int, error) {
	if c.rest == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.ReadCloser.Read(p[:min(len(p), c.rest)])
	c.rest -= n
	return n, err
}

// TestReaderResumes: a connection that breaks is made again, where the bytes still are the same.
func TestReaderResumes(t *testing.T) {
	server := s3test.Start(t)
	server.Setenv(t)
	u := server.Bucket(t, "there", "")
	healthy := open(t, u, bucket.Options{})
	b := contenttest.Blob{Seed: 1, Size: 1 << 20}
	const piece = 100_000
	var after atomic.Int64 // bytes of each answer
	s := open(t, u, bucket.Options{Pause: time.Millisecond, Wrap: func(base http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			resp, err := base.RoundTrip(req)
			if err == nil && req.Method == http.MethodGet && req.URL.Query().Get("list-type") == "" {
				resp.Body = &cut{resp.Body, int(after.Load())}
			}
			return resp, err
		})
	}})
	put(t, healthy, b)
	for _, tc := range []struct {
		name      string
		index     bool
		meanwhile func(t *testing.T)
		want      string // in the error; empty: all bytes
	}{
		{"the same", false, func(*testing.T) {}, ""},
		{"stored again", false, func(t *testing.T) { put(t, healthy, b) }, ""},
		{"nothing comes any more", false, func(*testing.T) { after.Store(0) }, "unexpected EOF"},
		{"an index that is replaced", true, func(t *testing.T) {
			// The age of an object is told in seconds.
			changed := time.Now().Add(-time.Minute)
			if err := os.Chtimes(filepath.Join(server.Folder, "there", "index", "sha256", b.Digest()[7:]), changed, changed); err != nil {
				t.Fatal(err)
			}
		}, "replaced"},
		{"deleted", false, func(t *testing.T) {
			if err := healthy.Delete(t.Context(), b.Digest()); err != nil {
				t.Fatal(err)
			}
		}, content.ErrNotFound.Error()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			after.Store(piece)
			read := s.Open
			if tc.index {
				if err := healthy.PutIndex(t.Context(), b.Digest(), b.Reader(), b.Size); err != nil {
					t.Fatal(err)
				}
				read = s.OpenIndex
			}
			for _, start := range []int64{0, 5} {
				if start > 0 && tc.want != "" {
					continue
				}
				r, err := read(t.Context(), b.Digest(), start, b.Size-2*start)
				if err != nil {
					t.Fatal(err)
				}
				got := make([]byte, 10)
				if _, err := io.ReadFull(r, got); err != nil {
					t.Fatal(err)
				}
				tc.meanwhile(t)
				rest, err := io.ReadAll(r)
				got = append(got, rest...)
				switch {
				case tc.want == "" && (err != nil || !bytes.Equal(got, b.Bytes(t)[start:b.Size-start])):
					t.Errorf("%d bytes, %v", len(got), err)
				case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
					t.Errorf("%d bytes, %v; want %q", len(got), err, tc.want)
				}
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestStall: nothing is waited for without end.
func TestStall(t *testing.T) {
	server := s3test.Start(t)
	server.Setenv(t)
	u := server.Bucket(t, "there", "")
	b := contenttest.Blob{Seed: 1, Size: 9 << 20}
	digest := put(t, open(t, u, bucket.Options{}), b)
	var stands atomic.Bool
	s := open(t, u, bucket.Options{
		Call: time.Second, Stall: 100 * time.Millisecond, Pause: time.Millisecond,
		Wrap: func(base http.RoundTripper) http.RoundTripper {
			return roundTripper(func(req *http.Request) (*http.Response, error) {
				if stands.Load() {
					<-req.Context().Done()
					return nil, req.Context().Err()
				}
				resp, err := base.RoundTrip(req)
				if err == nil {
					resp.Body = &standing{resp.Body, req, &stands}
				}
				return resp, err
			})
		},
	})
	r, err := s.Open(t.Context(), digest, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stands.Store(true)
	_, readErr := io.Copy(io.Discard, r)
	_, writeErr := io.Copy(w, contenttest.Blob{Seed: 2, Size: 64 << 20}.Reader())
	_, statErr := s.Stat(t.Context(), digest)
	for what, err := range map[string]error{"read": readErr, "write": writeErr, "stat": statErr} {
		if err == nil || errors.Is(err, content.ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := errors.Join(r.Close(), w.Abort()); err != nil {
		t.Error(err)
	}
	// It comes back alone.
	stands.Store(false)
	if _, err := s.Stat(t.Context(), digest); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// standing is a body of which nothing comes while it stands.
type standing struct {
	io.ReadCloser
	req    *http.Request
	stands *atomic.Bool
}

func (s *standing) Read(p []byte) (int, error) {
	if s.stands.Load() {
		<-s.req.Context().Done()
		return 0, s.req.Context().Err()
	}
	return s.ReadCloser.Read(p)
}

// TestSlowReader: who takes long to come for the next bytes still gets them.
func TestSlowReader(t *testing.T) {
	server := s3test.Start(t)
	server.Setenv(t)
	u := server.Bucket(t, "there", "")
	b := contenttest.Blob{Seed: 1, Size: 32 << 20}
	digest := put(t, open(t, u, bucket.Options{}), b)
	requests := atomic.Int64{}
	const stall = 500 * time.Millisecond
	s := open(t, u, bucket.Options{Stall: stall, Wrap: func(base http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			requests.Add(1)
			return base.RoundTrip(req)
		})
	}})
	r, err := s.Open(t.Context(), digest, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, r, 1000); err != nil {
		t.Fatal(err)
	}
	before := requests.Load()
	<-time.After(2 * stall) // longer than a request may stand still
	if n, err := io.CopyN(io.Discard, r, 1000); err != nil || requests.Load() != before {
		t.Errorf("%d bytes, %d requests more, %v", n, requests.Load()-before, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestSweepParts: the parts of an upload that nobody goes on with are in no listing, and go.
func TestSweepParts(t *testing.T) {
	server := s3test.Start(t)
	server.Setenv(t)
	u := server.Bucket(t, "there", "p")
	folder := filepath.Join(server.Folder, "there")
	var dead atomic.Bool
	s := open(t, u, bucket.Options{Pause: time.Millisecond, Wrap: func(base http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if dead.Load() {
				return nil, fmt.Errorf("dead: %w", errGone)
			}
			resp, err := base.RoundTrip(req)
			if err == nil && req.Method == http.MethodPut {
				dead.Store(true)
			}
			return resp, err
		})
	}})
	if _, err := (contenttest.Blob{Seed: 1, Size: 40 << 20}).Put(t.Context(), s); err == nil {
		t.Fatal("a dead writer stored its bytes")
	}
	if left := debris(t, folder, "p"); len(left) == 0 {
		t.Fatal("no part was left: the test tests nothing")
	}
	healthy := open(t, u, bucket.Options{})
	if err := healthy.Sweep(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if left := debris(t, folder, "p"); len(left) == 0 {
		t.Error("what is younger than an hour went")
	}
	if err := healthy.Sweep(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if left := debris(t, folder, "p"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestSweepIndexes: an index without its blob goes.
func TestSweepIndexes(t *testing.T) {
	server := s3test.Start(t)
	server.Setenv(t)
	s := open(t, server.Bucket(t, "there", ""), bucket.Options{})
	var digests []string
	for seed := range uint64(6) {
		b := contenttest.Blob{Seed: seed, Size: 10}
		digests = append(digests, put(t, s, b))
		if err := s.PutIndex(t.Context(), b.Digest(), b.Reader(), b.Size); err != nil {
			t.Fatal(err)
		}
	}
	gone := map[string]bool{digests[1]: true, digests[4]: true}
	for digest := range gone {
		if err := os.Remove(filepath.Join(server.Folder, "there", "blobs", "sha256", digest[7:])); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Sweep(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	for _, digest := range digests {
		r, err := s.OpenIndex(t.Context(), digest, 0, -1)
		if errors.Is(err, content.ErrNotFound) != gone[digest] {
			t.Errorf("the index of %s, whose blob is gone %v: %v", digest, gone[digest], err)
		}
		if err == nil {
			err = r.Close()
		}
		if err != nil && !gone[digest] {
			t.Error(err)
		}
	}
}

// TestCutUpload: a sender that dies in the middle of a request leaves nothing, even where a server takes what
// came for the whole.
func TestCutUpload(t *testing.T) {
	server := s3test.Start(t)
	server.Setenv(t)
	u := server.Bucket(t, "there", "")
	healthy := open(t, u, bucket.Options{})
	for _, b := range []contenttest.Blob{{Seed: 1, Size: 1 << 20}, {Seed: 2, Size: 5 << 20}, {Seed: 3, Size: 9 << 20}} {
		s := open(t, u, bucket.Options{Pause: time.Millisecond, Wrap: func(base http.RoundTripper) http.RoundTripper {
			return roundTripper(func(req *http.Request) (*http.Response, error) {
				if req.Method == http.MethodPut && req.ContentLength > 1000 {
					req.Body = &cut{req.Body, int(req.ContentLength / 2)}
				}
				return base.RoundTrip(req)
			})
		}})
		if _, err := b.Put(t.Context(), s); err == nil {
			t.Errorf("%d bytes of which half arrived were stored", b.Size)
		}
		if _, err := healthy.Stat(t.Context(), b.Digest()); !errors.Is(err, content.ErrNotFound) {
			t.Errorf("of %d bytes half arrived, and then: %v", b.Size, err)
		}
	}
}
