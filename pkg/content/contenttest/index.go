// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package contenttest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"rukpak.io/apiserver/pkg/content"
)

func readIndex(ctx context.Context, s content.Store, digest string, offset, length int64) (string, error) {
	r, err := s.OpenIndex(ctx, digest, offset, length)
	if err != nil {
		return "", err
	}
	got, err := io.ReadAll(r)
	return string(got), errors.Join(err, r.Close())
}

func putIndex(t *testing.T, s content.Store, digest, index string) {
	t.Helper()
	if err := s.PutIndex(t.Context(), digest, strings.NewReader(index), int64(len(index))); err != nil {
		t.Fatal(err)
	}
}

func testIndex(t *testing.T, p place) {
	digest := put(t, p, Blob{Seed: 1, Size: 1000})
	_, err := readIndex(t.Context(), p, digest, 0, -1)
	wantError(t, "an index that was not put", err, content.ErrNotFound)
	for _, index := range []string{"an index", "", "another index, which takes its place"} {
		putIndex(t, p, digest, index)
		for _, r := range []struct {
			offset, length int64
			want           string
		}{
			{0, -1, index},
			{0, 3, index[:min(3, len(index))]},
			{int64(len(index)), -1, ""},
			{int64(len(index) / 2), 2, index[len(index)/2 : min(len(index)/2+2, len(index))]},
		} {
			if got, err := readIndex(t.Context(), p, digest, r.offset, r.length); err != nil || got != r.want {
				t.Errorf("%d bytes from %d of %q: %q, %v", r.length, r.offset, index, got, err)
			}
		}
		_, err := readIndex(t.Context(), p, digest, int64(len(index))+1, -1)
		wantError(t, "a range behind the end of an index", err, content.ErrOutOfRange)
	}
	wantContent(t, p, digest, Blob{Seed: 1, Size: 1000}.Bytes(t))
	_, err = readIndex(t.Context(), p, "sha256:x", 0, -1)
	wantError(t, "an index of no digest", err, content.ErrInvalidDigest)
}

func testIndexDelete(t *testing.T, p place) {
	missing := Blob{Seed: 7}.Digest()
	wantError(t, "an index without a blob", p.PutIndex(t.Context(), missing, strings.NewReader("x"), 1), content.ErrNotFound)
	_, err := readIndex(t.Context(), p, missing, 0, -1)
	wantError(t, "an index without a blob", err, content.ErrNotFound)

	digest := put(t, p, Blob{Seed: 2, Size: 10})
	putIndex(t, p, digest, "x")
	if err := p.Delete(t.Context(), digest); err != nil {
		t.Fatal(err)
	}
	_, err = readIndex(t.Context(), p, digest, 0, -1)
	wantError(t, "an index of a blob that was deleted", err, content.ErrNotFound)
	put(t, p, Blob{Seed: 2, Size: 10})
	_, err = readIndex(t.Context(), p, digest, 0, -1)
	wantError(t, "an index of a blob that came back", err, content.ErrNotFound)
}

// An index whose bytes are too few, too many or end in an error leaves the one that is there.
func testIndexWhole(t *testing.T, p place) {
	digest := put(t, p, Blob{Seed: 3, Size: 10})
	putIndex(t, p, digest, "whole")
	broken := errors.New("broken")
	for what, r := range map[string]io.Reader{
		"too few":  strings.NewReader("123"),
		"too many": strings.NewReader("12345"),
		"an error": io.MultiReader(strings.NewReader("123"), errorReader{broken}),
	} {
		if err := p.PutIndex(t.Context(), digest, r, 4); err == nil {
			t.Errorf("%s: no error", what)
		}
		if got, err := readIndex(t.Context(), p, digest, 0, -1); err != nil || got != "whole" {
			t.Errorf("%s: then the index is %q, %v", what, got, err)
		}
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	wantError(t, "a context that is done", p.PutIndex(done, digest, strings.NewReader("1234"), 4), context.Canceled)
}

type errorReader struct{ err error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.err }

func testMark(t *testing.T, p place) {
	wantMark := func(want []byte) {
		t.Helper()
		if got, err := p.ReadMark(t.Context()); err != nil || !bytes.Equal(got, want) {
			t.Errorf("the mark is %q, %v, not %q", got, err, want)
		}
	}
	wantMark(nil)
	for _, mark := range []string{"one", strings.Repeat("m", content.MaxMark), "two"} {
		if err := p.WriteMark(t.Context(), []byte(mark)); err != nil {
			t.Fatal(err)
		}
		wantMark([]byte(mark))
	}
	if err := p.WriteMark(t.Context(), make([]byte, content.MaxMark+1)); err == nil {
		t.Error("a mark that is too long was taken")
	}
	p.Store = p.reopen(t)
	wantMark([]byte("two"))
	err := p.Walk(t.Context(), func(info content.Info) error {
		t.Errorf("the mark is walked as %+v", info)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
