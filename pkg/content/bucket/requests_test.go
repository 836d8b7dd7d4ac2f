// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket_test

import (
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"

	"rukpak.io/apiserver/pkg/content/bucket"
	"rukpak.io/apiserver/pkg/content/contenttest"
	"rukpak.io/apiserver/pkg/content/s3test"
)

// TestRequests counts what object stores take money and time for: docs/stores.md says it of storing, with a look whether it is there to
// stay, and of reading, with one how large it is.
func TestRequests(t *testing.T) {
	server := s3test.Start(t)
	server.Setenv(t)
	var (
		mu   sync.Mutex
		made map[string]int
	)
	count := func(base http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			method := req.Method
			if req.Header.Get("X-Amz-Copy-Source") != "" {
				method = "COPY"
			}
			mu.Lock()
			made[method]++
			mu.Unlock()
			return base.RoundTrip(req)
		})
	}
	s := open(t, server.Bucket(t, "counted", ""), bucket.Options{Wrap: count})
	small, large := contenttest.Blob{Seed: 1, Size: 1000}, contenttest.Blob{Seed: 2, Size: 20 << 20}
	look := func(b contenttest.Blob) error {
		_, err := s.Stat(t.Context(), b.Digest())
		return err
	}
	store := func(b contenttest.Blob) error {
		if _, err := b.Put(t.Context(), s); err != nil {
			return err
		}
		return look(b)
	}
	for _, step := range []struct {
		name string
		do   func() error
		want map[string]int
	}{
		{"store what is small", func() error { return store(small) }, map[string]int{"PUT": 1, "HEAD": 1}},
		{"store its index", func() error {
			return s.PutIndex(t.Context(), small.Digest(), strings.NewReader("index"), 5)
		}, map[string]int{"PUT": 1, "HEAD": 1}},
		{"read", func() error {
			if err := look(small); err != nil {
				return err
			}
			r, err := s.Open(t.Context(), small.Digest(), 0, -1)
			if err != nil {
				return err
			}
			if _, err := io.Copy(io.Discard, r); err != nil {
				return err
			}
			return r.Close()
		}, map[string]int{"HEAD": 1, "GET": 1}},
		{"store what is large", func() error { return store(large) }, map[string]int{"POST": 2, "PUT": 3, "COPY": 1, "HEAD": 3, "DELETE": 1}},
	} {
		made = map[string]int{}
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if !maps.Equal(made, step.want) {
			t.Errorf("%s: %v requests, not %v", step.name, made, step.want)
		}
	}
}
