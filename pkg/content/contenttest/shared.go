// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package contenttest

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"rukpak.io/apiserver/pkg/content"
)

// testSweep: what is whole stays, and so does what is on its way and younger than said.
func testSweep(t *testing.T, p place) {
	for _, size := range p.harness.sizes() {
		b, index := Blob{Seed: uint64(size), Size: size}, "an index"
		digest := put(t, p, b)
		putIndex(t, p, digest, index)
		if err := p.WriteMark(t.Context(), []byte("mark")); err != nil {
			t.Fatal(err)
		}
		live := Blob{Seed: uint64(size) + 1, Size: size}
		w := create(t, p, live.Bytes(t))
		if err := p.Sweep(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		if err := w.Commit(t.Context(), live.Digest()); err != nil {
			t.Errorf("commit after a sweep of older ones: %v", err)
		}
		wantContent(t, p, live.Digest(), live.Bytes(t))

		other := Blob{Seed: uint64(size) + 2, Size: size}
		w = create(t, p, other.Bytes(t))
		if err := p.Sweep(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		// It may have been taken for dead. If it says that it stored the bytes, it has.
		if err := w.Commit(t.Context(), other.Digest()); err == nil {
			wantContent(t, p, other.Digest(), other.Bytes(t))
		} else {
			wantAbsent(t, p, other.Digest())
		}
		if err := p.Sweep(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		wantContent(t, p, digest, b.Bytes(t))
		if got, err := readIndex(t.Context(), p, digest, 0, -1); err != nil || got != index {
			t.Errorf("the index is %q, %v", got, err)
		}
		if mark, err := p.ReadMark(t.Context()); err != nil || string(mark) != "mark" {
			t.Errorf("the mark is %q, %v", mark, err)
		}
	}
}

// second opens the place once more, as another process does.
func second(t *testing.T, p place) content.Store {
	t.Helper()
	other, closeOther := p.harness.Open(t)
	t.Cleanup(func() {
		if err := closeOther(); err != nil {
			t.Error(err)
		}
	})
	return other
}

func testTwoStores(t *testing.T, p place) {
	one := p.Store
	other := second(t, p)
	for _, size := range p.harness.sizes() {
		b := Blob{Seed: uint64(size), Size: size}
		w := create(t, one, b.Bytes(t))
		wantAbsent(t, other, b.Digest())
		if err := w.Commit(t.Context(), b.Digest()); err != nil {
			t.Fatal(err)
		}
		wantContent(t, other, b.Digest(), b.Bytes(t))
		putIndex(t, other, b.Digest(), "index")
		if got, err := readIndex(t.Context(), one, b.Digest(), 0, -1); err != nil || got != "index" {
			t.Errorf("the index of the other is %q, %v", got, err)
		}
		r, err := one.Open(t.Context(), b.Digest(), 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		w = create(t, one, b.Bytes(t))
		if err := other.Delete(t.Context(), b.Digest()); err != nil {
			t.Fatal(err)
		}
		wantAbsent(t, one, b.Digest())
		got, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil || !bytes.Equal(got, b.Bytes(t)) {
			t.Errorf("a reader across a delete by the other: %d bytes, %v", len(got), err)
		}
		if err := w.Commit(t.Context(), b.Digest()); err != nil {
			t.Errorf("commit after a delete by the other: %v", err)
		}
		wantContent(t, other, b.Digest(), b.Bytes(t))
	}
	if err := one.WriteMark(t.Context(), []byte("mine")); err != nil {
		t.Fatal(err)
	}
	if mark, err := other.ReadMark(t.Context()); err != nil || string(mark) != "mine" {
		t.Errorf("the mark of the other is %q, %v", mark, err)
	}
}

// testTwoWriters lets writers of one digest, and sweeps, meet on two stores.
func testTwoWriters(t *testing.T, p place) {
	stores := []content.Store{p.Store, second(t, p)}
	for _, size := range p.harness.sizes() {
		b := Blob{Seed: uint64(size), Size: size}
		var group sync.WaitGroup
		for i := range 6 {
			s := stores[i%len(stores)]
			group.Go(func() {
				for range 3 {
					if _, err := b.Put(t.Context(), s); err != nil {
						t.Error(err)
					}
					if got, err := read(t.Context(), s, b.Digest(), 0, -1); err != nil || int64(len(got)) != b.Size {
						t.Errorf("read %d bytes, %v", len(got), err)
					}
					if err := s.Sweep(t.Context(), time.Hour); err != nil {
						t.Error(err)
					}
				}
			})
		}
		group.Wait()
		for _, s := range stores {
			wantContent(t, s, b.Digest(), b.Bytes(t))
		}
	}
}
