// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"io"
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/registry/rest"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/content"
)

// sender holds the header back until there is something to send.
type sender struct {
	*pacedWriter
	code    int
	began   bool
	dropped bool
}

func newSender(_ context.Context, w http.ResponseWriter) *sender {
	return &sender{pacedWriter: newPacedWriter(w)}
}

func (s *sender) WriteHeader(code int) {
	if s.code == 0 {
		s.code, s.dropped = code, code >= http.StatusBadRequest
	}
}

func (s *sender) begin() {
	if s.began || s.dropped {
		return
	}
	if s.code == 0 {
		s.code = http.StatusOK
	}
	s.began = true
	s.pacedWriter.WriteHeader(s.code)
}

func (s *sender) Write(b []byte) (int, error) {
	if s.dropped {
		return len(b), nil
	}
	s.begin()
	return s.pacedWriter.Write(b)
}

func (s *sender) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(struct{ io.Writer }{s}, r)
	if err != nil {
		s.err = err
	}
	return n, err
}

func (s *sender) finish() error {
	if s.err == nil {
		s.begin()
	}
	return s.pacedWriter.finish()
}

func (s *sender) abort(responder rest.Responder, err error) {
	if s.began {
		panic(http.ErrAbortHandler)
	}
	s.answer(responder, err)
}

func (s *sender) answer(responder rest.Responder, err error) {
	for _, name := range []string{"Accept-Ranges", "Content-Length", "Content-Type", "ETag", "Last-Modified", "Repr-Digest", "X-Content-Type-Options"} {
		s.Header().Del(name)
	}
	responder.Error(err)
}

func tidyRange(h http.Header) {
	if strings.Count(h.Get("Range"), ",") >= maxRanges {
		h.Del("Range")
	}
}

func (r *REST) reread(ctx context.Context, b *rukpak.Bundle, c *rukpak.ContentStatus, store content.Store) error {
	err := store.Delete(ctx, c.Digest)
	if err != nil {
		return unavailable("remove damaged content", b, err)
	}
	r.markLost(ctx, b, c, errBlob)
	return lost(b, c.Digest)
}
