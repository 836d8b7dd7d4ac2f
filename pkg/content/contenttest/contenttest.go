// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package contenttest is the suite that every content store passes.
//
// A backend runs it with
//
//	contenttest.Run(t, func(t *testing.T) contenttest.Harness { … })
//
// and, for the tests that kill a writer half-way, lets its TestMain call
// contenttest.Child when the environment of the process says so.
package contenttest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"os/exec"
	"testing"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/failpoint"
)

// Harness is one empty place in which a backend keeps content.
type Harness struct {
	// Open opens the place; called again, after what it returned was closed, it opens the
	// same place anew, as a process does that starts again.
	Open func(t *testing.T) (store content.Store, closeStore func() error)

	// Borders are sizes, in bytes, at which the store begins another chunk, or works in another way.
	Borders []int64

	// Small opens another place, which has room for some bytes and for not many more. Nil if
	// there is no such place here.
	Small func(t *testing.T) (store content.Store, room int64)

	// Faulty opens the same place, beside the store that Open opened, through something that
	// asks what is to happen to each call that leaves the process. Nil if none does.
	Faulty func(t *testing.T, next func() Fault) content.Store

	// Failpoints are those of the store.
	Failpoints []string

	// Debris names whatever the place holds that is no blob and belongs to no writer. It is
	// called while the store is open.
	Debris func(t *testing.T) []string

	// Child returns a command, not started, that opens the same place in a process of its
	// own and calls Child. It is called while the store is closed. Nil if the place is in
	// this process.
	Child func(t *testing.T) *exec.Cmd
}

// Run runs the suite. New is called once for every test.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	cases := []testCase{
		{"what is stored is read", testRoundTrip},
		{"ranges", testRanges},
		{"a digest that is not there", testNotFound},
		{"invalid digests", testInvalidDigest},
		{"nothing is visible before commit", testInvisible},
		{"a wrong digest stores nothing", testMismatch},
		{"abort", testAbort},
		{"a writer commits once", testCommitTwice},
		{"the same bytes again", testCommitAgain},
		{"commit after delete", testCommitAfterDelete},
		{"a reader outlives a delete", testReadAcrossDelete},
		{"delete", testDelete},
		{"walk", testWalk},
		{"contexts that are done", testContext},
		{"the context of a writer", testWriterContext},
		{"many writers of one digest", testSameDigest},
		{"many goroutines", testManyGoroutines},
		{"an index", testIndex},
		{"an index goes with its blob", testIndexDelete},
		{"an index is whole", testIndexWhole},
		{"the mark", testMark},
		{"opened again", testReopen},
		{"sweep", testSweep},
		{"borders", testBorders},
		{"a large blob", testLarge},
	}
	h := newHarness(t)
	if isShared(t, h) {
		cases = append(cases, testCase{"two stores on one place", testTwoStores}, testCase{"writers on two stores", testTwoWriters})
	}
	if h.Small != nil {
		cases = append(cases, testCase{"a small place", testSmall})
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t)
			store, closeStore := h.Open(t)
			p := place{Store: store, harness: h, reopen: func(t *testing.T) content.Store {
				t.Helper()
				if err := closeStore(); err != nil {
					t.Fatal(err)
				}
				store, closeStore = h.Open(t)
				return store
			}}
			tc.test(t, p)
			if left := h.Debris(t); len(left) > 0 {
				t.Errorf("debris is left: %q", left)
			}
			if err := closeStore(); err != nil {
				t.Error(err)
			}
		})
	}
	if h.Faulty != nil {
		t.Run("faults", func(t *testing.T) { testFaults(t, newHarness) })
	}
	if h.Child == nil {
		return
	}
	t.Run("killed at random", func(t *testing.T) { testKilledAtRandom(t, newHarness(t)) })
	t.Run("killed between calls", func(t *testing.T) { testKilledBetweenCalls(t, newHarness) })
	if failpoint.Enabled {
		t.Run("killed at failpoints", func(t *testing.T) { testKilledAtFailpoints(t, newHarness) })
	}
}

type testCase struct {
	name string
	test func(*testing.T, place)
}

// isShared reports whether several processes may use the store.
func isShared(t *testing.T, h Harness) bool {
	t.Helper()
	s, closeStore := h.Open(t)
	shared := s.Shared()
	if err := closeStore(); err != nil {
		t.Fatal(err)
	}
	return shared
}

// place is an open harness.
type place struct {
	content.Store
	harness Harness
	reopen  func(t *testing.T) content.Store
}

// Blob is repeatable bytes.
type Blob struct {
	Seed uint64
	Size int64
}

// Reader gives the bytes, which do not compress.
func (b Blob) Reader() io.Reader {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], b.Seed)
	return io.LimitReader(rand.NewChaCha8(seed), b.Size)
}

// Bytes gives the bytes at once.
func (b Blob) Bytes(t testing.TB) []byte {
	t.Helper()
	all, err := io.ReadAll(b.Reader())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Digest hashes the bytes.
func (b Blob) Digest() string {
	h := sha256.New()
	if _, err := io.Copy(h, b.Reader()); err != nil {
		panic(err) // neither side fails
	}
	return content.Algorithm + ":" + hex.EncodeToString(h.Sum(nil))
}

// Put stores the blob and returns its digest.
func (b Blob) Put(ctx context.Context, s content.Store) (string, error) {
	w, err := s.Create(ctx)
	if err != nil {
		return "", err
	}
	if _, err := io.Copy(w, b.Reader()); err != nil {
		return "", errors.Join(err, w.Abort())
	}
	digest := w.Digest()
	return digest, w.Commit(ctx, digest)
}

func put(t *testing.T, s content.Store, b Blob) string {
	t.Helper()
	digest, err := b.Put(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if want := b.Digest(); digest != want {
		t.Fatalf("the writer says %s, the bytes are %s", digest, want)
	}
	return digest
}

func create(t *testing.T, s content.Store, text []byte) content.Writer {
	t.Helper()
	w, err := s.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := w.Write(text); err != nil || n != len(text) {
		t.Fatalf("wrote %d of %d bytes: %v", n, len(text), err)
	}
	return w
}

func read(ctx context.Context, s content.Store, digest string, offset, length int64) ([]byte, error) {
	r, err := s.Open(ctx, digest, offset, length)
	if err != nil {
		return nil, err
	}
	got, err := io.ReadAll(r)
	return got, errors.Join(err, r.Close())
}

func wantContent(t *testing.T, s content.Store, digest string, want []byte) {
	t.Helper()
	got, err := read(t.Context(), s, digest, 0, -1)
	if err != nil {
		t.Errorf("read %s: %v", digest, err)
		return
	}
	if !bytes.Equal(got, want) {
		t.Errorf("read %s: %d bytes that are not the %d stored", digest, len(got), len(want))
	}
	info, err := s.Stat(t.Context(), digest)
	if err != nil || info.Digest != digest || info.Size != int64(len(want)) || info.ModTime.IsZero() {
		t.Errorf("stat of %s with %d bytes: %+v, %v", digest, len(want), info, err)
	}
}

func wantAbsent(t *testing.T, s content.Store, digest string) {
	t.Helper()
	if _, err := read(t.Context(), s, digest, 0, -1); !errors.Is(err, content.ErrNotFound) {
		t.Errorf("open %s: %v, want %v", digest, err, content.ErrNotFound)
	}
	if _, err := s.Stat(t.Context(), digest); !errors.Is(err, content.ErrNotFound) {
		t.Errorf("stat %s: %v, want %v", digest, err, content.ErrNotFound)
	}
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}
