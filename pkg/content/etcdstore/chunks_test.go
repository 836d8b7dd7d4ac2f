// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcdstore_test

import (
	"bytes"
	"io"
	"testing"

	"rukpak.io/apiserver/pkg/content/contenttest"
	"rukpak.io/apiserver/pkg/content/etcdstore"
	"rukpak.io/apiserver/pkg/content/etcdtest"
)

// However many readers are half-way, the chunks in memory are few, and each reader gets its bytes.
func TestReadersShareTheMemory(t *testing.T) {
	s := etcdstore.New(etcdtest.Start(t), prefix, etcdstore.DefaultCapacity)
	const readers = 2 * etcdstore.MaxChunks
	var (
		blobs []contenttest.Blob
		open  []io.ReadCloser
		began [][]byte
	)
	for i := range readers {
		// Two of them read the same.
		b := contenttest.Blob{Seed: uint64(i / 2 * 2), Size: 1000}
		if i%2 == 0 {
			put(t, s, b)
		}
		r, err := s.Open(t.Context(), b.Digest(), 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		start := make([]byte, 100)
		if _, err := io.ReadFull(r, start); err != nil {
			t.Fatal(err)
		}
		blobs, open, began = append(blobs, b), append(open, r), append(began, start)
	}
	if kept, at := s.Kept(); kept > etcdstore.MaxChunks || at != readers/2 {
		t.Errorf("%d chunks are kept, for readers at %d", kept, at)
	}
	more, err := s.Open(t.Context(), put(t, s, contenttest.Blob{Seed: 9999, Size: etcdstore.MaxChunks*etcdstore.ChunkSize/16 + 5}), 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, more); err != nil {
		t.Fatal(err)
	}
	for i, r := range open {
		rest, err := io.ReadAll(r)
		if got := append(began[i], rest...); err != nil || !bytes.Equal(got, blobs[i].Bytes(t)) {
			t.Errorf("reader %d gets %d bytes, %v", i, len(got), err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := more.Close(); err != nil {
		t.Error(err)
	}
	if kept, at := s.Kept(); kept != 0 || at != 0 {
		t.Errorf("without readers %d chunks are kept, of %d", kept, at)
	}
}

// More readers than there is memory for, each at a chunk of its own, read on.
func TestAChunkThatWasDroppedIsReadAgain(t *testing.T) {
	s := etcdstore.New(etcdtest.Start(t), prefix, etcdstore.DefaultCapacity)
	const readers = etcdstore.MaxChunks + 10
	var open []io.ReadCloser
	for i := range readers {
		r, err := s.Open(t.Context(), put(t, s, contenttest.Blob{Seed: uint64(i), Size: 1000}), 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, r)
	}
	got := make([][]byte, readers)
	for range 10 {
		for i, r := range open {
			part := make([]byte, 100)
			if _, err := io.ReadFull(r, part); err != nil {
				t.Fatal(err)
			}
			got[i] = append(got[i], part...)
		}
		if kept, _ := s.Kept(); kept > etcdstore.MaxChunks {
			t.Fatalf("%d chunks are kept", kept)
		}
	}
	for i, r := range open {
		if want := (contenttest.Blob{Seed: uint64(i), Size: 1000}).Bytes(t); !bytes.Equal(got[i], want) {
			t.Errorf("reader %d gets other bytes", i)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
