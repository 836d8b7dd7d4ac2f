// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
)

// taker answers each request of an upload with 2xx. Where it says to be is what is tested.
type taker struct {
	at       func(parts int) int // after so many parts, in the smallest chunks; negative where it does not say
	last     string              // the body of its answer to the last part
	parts    int
	requests int
}

func (s *taker) RoundTrip(req *http.Request) (*http.Response, error) {
	s.requests++
	answer := httptest.NewRecorder()
	if req.Body != nil {
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return nil, err
		}
	}
	switch req.Method {
	case http.MethodPost:
		answer.Header().Set("Location", req.URL.Path+"/upload-1")
		answer.WriteHeader(http.StatusCreated)
		return answer.Result(), nil
	case http.MethodPatch:
		s.parts++
		time.Sleep(chunkTime) // so that chunks do not grow
	}
	if at := s.at(s.parts); at >= 0 {
		answer.Header().Set("Upload-Offset", strconv.Itoa(at*minChunkSize))
	}
	if req.Method == http.MethodPatch && req.Header.Get("Upload-Complete") == "?1" {
		answer.WriteString(s.last)
		return answer.Result(), nil
	}
	answer.WriteHeader(http.StatusNoContent)
	return answer.Result(), nil
}

func TestUploadContentEndsWhereItGetsNoFurther(t *testing.T) {
	const bundle = `{"metadata":{"name":"app"}}`
	for name, test := range map[string]struct {
		at       func(int) int
		last     string
		patience time.Duration
		want     string // in the error
	}{
		"it stays at the beginning": {at: func(int) int { return 0 }, want: `bundle "app": no progress in 8 requests at byte 0 of 2621440`},
		"it says nothing":           {at: func(int) int { return -1 }, want: "no progress in 8 requests at byte 0 of 2621440"},
		"it stays somewhere":        {at: func(n int) int { return min(n, 3) }, want: "no progress in 8 requests at byte 786432 of 2621440"},
		"it falls back each time":   {at: func(n int) int { return n % 2 }, want: "no progress in 8 requests at byte 0 of 2621440"},
		"with less patience":        {at: func(int) int { return 0 }, patience: chunkTime + time.Second, want: "no progress for 30s at byte 0 of 2621440"},
		"it falls back at times":    {at: func(n int) int { return n - n/4 }, last: bundle},
		"it hesitates":              {at: func(n int) int { return n / 7 }, last: bundle},
		"the end is no bundle":      {at: func(n int) int { return n }, last: "{}", want: "whether it was written is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &taker{at: test.at, last: test.last}
				c, err := NewForConfigAndClient(&rest.Config{Host: "http://server.invalid"}, &http.Client{Transport: &bounded{s, t}})
				if err != nil {
					t.Fatal(err)
				}
				content := strings.Repeat("x", 10*minChunkSize)
				opts := UploadContentOptions{ChunkSize: minChunkSize, Patience: test.patience}
				_, err = c.Bundles("team").UploadContent(t.Context(), "app", strings.NewReader(content), int64(len(content)), opts)
				if got := fmt.Sprint(err); test.want == "" && err != nil || !strings.Contains(got, test.want) {
					t.Error(got)
				}
			})
		})
	}
}

// bounded ends a test whose client does not end.
type bounded struct {
	*taker
	t *testing.T
}

func (b *bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	if b.requests > 1000 {
		b.t.Fatal("it goes on without end")
	}
	return b.taker.RoundTrip(req)
}
