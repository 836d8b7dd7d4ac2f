// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package contenttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"rukpak.io/apiserver/pkg/content"
)

func testRoundTrip(t *testing.T, p place) {
	for _, size := range []int64{0, 1, 511, 4096, 1<<20 + 1, 9 << 20} {
		b := Blob{Seed: uint64(size), Size: size}
		digest := put(t, p, b)
		wantContent(t, p, digest, b.Bytes(t))
	}
}

func testRanges(t *testing.T, p place) {
	const size = 1<<20 + 17
	b := Blob{Seed: 1, Size: size}
	digest, all := put(t, p, b), b.Bytes(t)
	empty := put(t, p, Blob{})
	for _, tc := range []struct {
		digest         string
		offset, length int64
		want           []byte
		err            error
	}{
		{digest, 0, -1, all, nil},
		{digest, 0, size, all, nil},
		{digest, 0, size + 1, all, nil},
		{digest, 0, 1<<63 - 1, all, nil},
		{digest, 1, 1<<63 - 1, all[1:], nil},
		{digest, 0, 0, nil, nil},
		{digest, 0, 1, all[:1], nil},
		{digest, 1, 1, all[1:2], nil},
		{digest, 4095, 2, all[4095:4097], nil},
		{digest, 1<<20 - 1, 2, all[1<<20-1 : 1<<20+1], nil},
		{digest, size - 1, 1, all[size-1:], nil},
		{digest, size - 1, -1, all[size-1:], nil},
		{digest, size - 1, 100, all[size-1:], nil},
		{digest, size, -1, nil, nil},
		{digest, size, 1, nil, nil},
		{digest, size + 1, -1, nil, content.ErrOutOfRange},
		{digest, size + 1, 0, nil, content.ErrOutOfRange},
		{digest, 1<<63 - 1, 1, nil, content.ErrOutOfRange},
		{digest, -1, 1, nil, content.ErrOutOfRange},
		{digest, -1 << 63, -1, nil, content.ErrOutOfRange},
		{empty, 0, -1, nil, nil},
		{empty, 0, 1, nil, nil},
		{empty, 1, -1, nil, content.ErrOutOfRange},
	} {
		name := fmt.Sprintf("offset %d length %d", tc.offset, tc.length)
		got, err := read(t.Context(), p, tc.digest, tc.offset, tc.length)
		wantError(t, name, err, tc.err)
		if !bytes.Equal(got, tc.want) {
			t.Errorf("%s: %d bytes, want %d", name, len(got), len(tc.want))
		}
	}
}

func testNotFound(t *testing.T, p place) {
	put(t, p, Blob{Seed: 1, Size: 10})
	wantAbsent(t, p, Blob{Seed: 2, Size: 10}.Digest())
	if err := p.Delete(t.Context(), Blob{Seed: 2, Size: 10}.Digest()); err != nil {
		t.Errorf("delete of nothing: %v", err)
	}
}

func testInvalidDigest(t *testing.T, p place) {
	hex := strings.Repeat("ab", 32)
	for _, digest := range []string{"", hex, "sha256:", "sha256:" + hex[1:], "sha256:" + strings.ToUpper(hex), "sha512:" + hex + hex,
		"sha256:../../../../../../../../../../../../../../../../../../../etc/pass"} {
		_, err := p.Open(t.Context(), digest, 0, -1)
		wantError(t, "open "+digest, err, content.ErrInvalidDigest)
		_, err = p.Stat(t.Context(), digest)
		wantError(t, "stat "+digest, err, content.ErrInvalidDigest)
		wantError(t, "delete "+digest, p.Delete(t.Context(), digest), content.ErrInvalidDigest)
		w := create(t, p, []byte("text"))
		wantError(t, "commit "+digest, w.Commit(t.Context(), digest), content.ErrInvalidDigest)
	}
	wantBlobs(t, p)
}

func testInvisible(t *testing.T, p place) {
	b := Blob{Seed: 1, Size: 100_000}
	w := create(t, p, b.Bytes(t))
	if w.Size() != b.Size || w.Digest() != b.Digest() {
		t.Errorf("the writer says %d bytes, %s", w.Size(), w.Digest())
	}
	wantAbsent(t, p, b.Digest())
	wantBlobs(t, p)
	if err := w.Commit(t.Context(), b.Digest()); err != nil {
		t.Fatal(err)
	}
	wantContent(t, p, b.Digest(), b.Bytes(t))
	wantBlobs(t, p, b.Digest())
}

func testMismatch(t *testing.T, p place) {
	b, other := Blob{Seed: 1, Size: 1000}, Blob{Seed: 2, Size: 1000}
	stored := put(t, p, Blob{Seed: 3, Size: 1000})
	for _, digest := range []string{other.Digest(), stored} {
		w := create(t, p, b.Bytes(t))
		wantError(t, "commit", w.Commit(t.Context(), digest), content.ErrDigestMismatch)
		wantError(t, "commit after a failed one", w.Commit(t.Context(), b.Digest()), content.ErrFinished)
		if err := w.Abort(); err != nil {
			t.Errorf("abort after a failed commit: %v", err)
		}
	}
	wantAbsent(t, p, b.Digest())
	wantAbsent(t, p, other.Digest())
	wantContent(t, p, stored, Blob{Seed: 3, Size: 1000}.Bytes(t))
	wantBlobs(t, p, stored)
}

func testAbort(t *testing.T, p place) {
	b := Blob{Seed: 1, Size: 100_000}
	w := create(t, p, b.Bytes(t))
	for range 2 {
		if err := w.Abort(); err != nil {
			t.Errorf("abort: %v", err)
		}
	}
	_, err := w.Write([]byte("more"))
	wantError(t, "write after abort", err, content.ErrFinished)
	wantError(t, "commit after abort", w.Commit(t.Context(), b.Digest()), content.ErrFinished)
	wantBlobs(t, p)
}

func testCommitTwice(t *testing.T, p place) {
	b := Blob{Seed: 1, Size: 1000}
	w := create(t, p, b.Bytes(t))
	if err := w.Commit(t.Context(), b.Digest()); err != nil {
		t.Fatal(err)
	}
	wantError(t, "second commit", w.Commit(t.Context(), b.Digest()), content.ErrFinished)
	_, err := w.Write([]byte("more"))
	wantError(t, "write after commit", err, content.ErrFinished)
	if err := w.Abort(); err != nil {
		t.Errorf("abort after commit: %v", err)
	}
	wantContent(t, p, b.Digest(), b.Bytes(t))
}

func testCommitAgain(t *testing.T, p place) {
	b := Blob{Seed: 1, Size: 1000}
	digest := put(t, p, b)
	r, err := p.Open(t.Context(), digest, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	put(t, p, b)
	got, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil || !bytes.Equal(got, b.Bytes(t)) {
		t.Errorf("the reader from before got %d bytes, %v", len(got), err)
	}
	wantContent(t, p, digest, b.Bytes(t))
	wantBlobs(t, p, digest)
}

// testCommitAfterDelete: a writer that began while the blob was there must not rely on it.
func testCommitAfterDelete(t *testing.T, p place) {
	b := Blob{Seed: 1, Size: 1000}
	digest := put(t, p, b)
	w := create(t, p, b.Bytes(t))
	if err := p.Delete(t.Context(), digest); err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(t.Context(), digest); err != nil {
		t.Fatal(err)
	}
	wantContent(t, p, digest, b.Bytes(t))
}

func testReadAcrossDelete(t *testing.T, p place) {
	b := Blob{Seed: 1, Size: 4 << 20}
	digest := put(t, p, b)
	r, err := p.Open(t.Context(), digest, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	head := make([]byte, 1000)
	if _, err := io.ReadFull(r, head); err != nil {
		t.Fatal(err)
	}
	if err := p.Delete(t.Context(), digest); err != nil {
		t.Fatal(err)
	}
	wantAbsent(t, p, digest)
	rest, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(append(head, rest...), b.Bytes(t)) {
		t.Error("the reader did not get all bytes")
	}
}

func testDelete(t *testing.T, p place) {
	kept, gone := put(t, p, Blob{Seed: 1, Size: 10}), put(t, p, Blob{Seed: 2, Size: 10})
	for range 2 {
		if err := p.Delete(t.Context(), gone); err != nil {
			t.Fatal(err)
		}
	}
	wantAbsent(t, p, gone)
	wantBlobs(t, p, kept)
}

func testWalk(t *testing.T, p place) {
	wantBlobs(t, p)
	sizes := map[string]int64{}
	for i := range 40 {
		b := Blob{Seed: uint64(i), Size: int64(i)}
		sizes[put(t, p, b)] = b.Size
	}
	visited := 0
	err := p.Walk(t.Context(), func(info content.Info) error {
		visited++
		if size, ok := sizes[info.Digest]; !ok || size != info.Size || info.ModTime.IsZero() {
			t.Errorf("visited %+v, size should be %d", info, size)
		}
		return nil
	})
	if err != nil || visited != len(sizes) {
		t.Errorf("visited %d of %d blobs, %v", visited, len(sizes), err)
	}
	stop, calls := errors.New("stop"), 0
	err = p.Walk(t.Context(), func(content.Info) error { calls++; return stop })
	if err != stop || calls != 1 {
		t.Errorf("a walk that is stopped at once: %d calls, %v", calls, err)
	}
	if err := p.Walk(t.Context(), func(info content.Info) error { return p.Delete(t.Context(), info.Digest) }); err != nil {
		t.Errorf("delete inside of walk: %v", err)
	}
	wantBlobs(t, p)
}

func testContext(t *testing.T, p place) {
	b := Blob{Seed: 1, Size: 10}
	digest := put(t, p, b)
	done, cancel := context.WithCancel(t.Context())
	cancel()

	_, err := p.Create(done)
	wantError(t, "create", err, context.Canceled)
	_, err = p.Open(done, digest, 0, -1)
	wantError(t, "open", err, context.Canceled)
	_, err = p.Stat(done, digest)
	wantError(t, "stat", err, context.Canceled)
	wantError(t, "delete", p.Delete(done, digest), context.Canceled)
	wantError(t, "walk", p.Walk(done, func(content.Info) error { return nil }), context.Canceled)
	other := Blob{Seed: 2, Size: 10}
	wantError(t, "commit", create(t, p, other.Bytes(t)).Commit(done, other.Digest()), context.Canceled)

	wantAbsent(t, p, other.Digest())
	wantContent(t, p, digest, b.Bytes(t))
	wantBlobs(t, p, digest)
}

// testWriterContext: the context of Create bounds the writes, and not Commit.
func testWriterContext(t *testing.T, p place) {
	for _, more := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		w, err := p.Create(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte("text")); err != nil {
			t.Fatal(err)
		}
		cancel()
		if !more {
			if err := w.Commit(t.Context(), w.Digest()); err != nil {
				t.Errorf("commit after the last byte: %v", err)
			}
			wantBlobs(t, p, w.Digest())
			continue
		}
		stored := w.Digest()
		_, err = w.Write([]byte("more"))
		wantError(t, "write", err, context.Canceled)
		wantError(t, "commit after a failed write", w.Commit(t.Context(), w.Digest()), context.Canceled)
		wantBlobs(t, p, stored)
	}
}

func testSameDigest(t *testing.T, p place) {
	b := Blob{Seed: 1, Size: 300_000}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 4 {
				if _, err := b.Put(t.Context(), p); err != nil {
					t.Error(err)
				}
				// Each has stored it, so whatever the others do now, it is there and whole.
				if got, err := read(t.Context(), p, b.Digest(), 0, -1); err != nil || int64(len(got)) != b.Size {
					t.Errorf("read %d bytes, %v", len(got), err)
				}
			}
		})
	}
	group.Wait()
	wantContent(t, p, b.Digest(), b.Bytes(t))
	wantBlobs(t, p, b.Digest())
}

// testManyGoroutines lets writers, readers, deleters and walkers meet on a few digests:
// what is read is whole or absent.
func testManyGoroutines(t *testing.T, p place) {
	blobs := make([]Blob, 5)
	all := make([][]byte, len(blobs))
	for i := range blobs {
		blobs[i] = Blob{Seed: uint64(i), Size: int64(i) * 40_000}
		all[i] = blobs[i].Bytes(t)
	}
	var group sync.WaitGroup
	for worker := range 12 {
		group.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(worker)))
			for range 30 {
				i := random.IntN(len(blobs))
				if err := oneOf(t.Context(), random.IntN(5), p, blobs[i], all[i]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	for i := range blobs {
		put(t, p, blobs[i])
		wantContent(t, p, blobs[i].Digest(), all[i])
	}
}

func oneOf(ctx context.Context, action int, s content.Store, b Blob, all []byte) error {
	switch action {
	case 0:
		_, err := b.Put(ctx, s)
		return err
	case 1:
		w, err := s.Create(ctx)
		if err != nil {
			return err
		}
		_, err = io.Copy(w, io.LimitReader(b.Reader(), b.Size/2))
		return errors.Join(err, w.Abort())
	case 2:
		return s.Delete(ctx, b.Digest())
	case 3:
		return s.Walk(ctx, func(content.Info) error { return nil })
	default:
		got, err := read(ctx, s, b.Digest(), 0, -1)
		if errors.Is(err, content.ErrNotFound) {
			return nil
		}
		if err == nil && !bytes.Equal(got, all) {
			err = fmt.Errorf("read %d bytes that are not those of %s", len(got), b.Digest())
		}
		return err
	}
}

func testReopen(t *testing.T, p place) {
	kept, gone := Blob{Seed: 1, Size: 10_000}, Blob{Seed: 2, Size: 10_000}
	put(t, p, kept)
	put(t, p, gone)
	if err := p.Delete(t.Context(), gone.Digest()); err != nil {
		t.Fatal(err)
	}
	s := p.reopen(t)
	wantContent(t, s, kept.Digest(), kept.Bytes(t))
	wantBlobs(t, s, kept.Digest())
}

// wantBlobs checks what Walk visits.
func wantBlobs(t *testing.T, s content.Store, want ...string) {
	t.Helper()
	var got []string
	if err := s.Walk(t.Context(), func(info content.Info) error {
		got = append(got, info.Digest)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the store has %q, want %q", got, want)
	}
}
