// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package contenttest

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"testing"
	"time"

	"rukpak.io/apiserver/pkg/content"
)

// LargeBytes is the variable of the environment that says how large the large blob is.
const LargeBytes = "RUKPAK_LARGE_BYTES"

const (
	defaultLarge = 40 << 20
	// mostMemory is what storing and reading it may keep in memory.
	mostMemory = 256 << 20
)

// testBorders stores and reads around the sizes at which the store works in another way.
func testBorders(t *testing.T, p place) {
	for _, border := range p.harness.Borders {
		for _, size := range []int64{border - 1, border, border + 1, 2 * border, 2*border + 1} {
			b := Blob{Seed: uint64(size), Size: size}
			digest, all := put(t, p, b), b.Bytes(t)
			wantContent(t, p, digest, all)
			for _, offset := range []int64{border - 1, border, border + 1, size - 1} {
				if offset > size {
					continue
				}
				for _, length := range []int64{0, 1, 2, border, -1} {
					end := size
					if length >= 0 {
						end = min(size, offset+length)
					}
					got, err := read(t.Context(), p, digest, offset, length)
					if err != nil || !bytes.Equal(got, all[offset:end]) {
						t.Errorf("of %d bytes %d from %d: %d bytes, %v", size, length, offset, len(got), err)
					}
				}
			}
			if err := p.Delete(t.Context(), digest); err != nil {
				t.Error(err)
			}
		}
	}
}

// testLarge stores and reads a blob that does not fit into the memory that it may use.
func testLarge(t *testing.T, p place) {
	size, err := strconv.ParseInt(cmp.Or(os.Getenv(LargeBytes), strconv.Itoa(defaultLarge)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	counted := size > 2*mostMemory && p.harness.Child != nil
	if counted {
		// Garbage is none of it. etcd, which runs in this process, makes much.
		defer debug.SetMemoryLimit(debug.SetMemoryLimit(mostMemory * 3 / 4))
	}
	b := Blob{Seed: 5, Size: size}
	began := time.Now()
	digest, err := b.Put(t.Context(), p)
	if errors.Is(err, content.ErrNoSpace) {
		t.Skipf("this store has no room for %d bytes: %v", size, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	stored := time.Now()
	r, err := p.Open(t.Context(), digest, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	hash := sha256.New()
	n, err := io.Copy(hash, r)
	if err := errors.Join(err, r.Close()); err != nil || n != size {
		t.Fatalf("read %d of %d bytes, %v", n, size, err)
	}
	if got := content.Algorithm + ":" + hex.EncodeToString(hash.Sum(nil)); got != digest {
		t.Errorf("stored %s, read %s", digest, got)
	}
	rate := func(d time.Duration) float64 { return float64(size) / (1 << 20) / d.Seconds() }
	t.Logf("%d bytes: stored at %.0f MiB/s, read at %.0f MiB/s", size, rate(stored.Sub(began)), rate(time.Since(stored)))
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if counted && m.HeapSys > mostMemory {
		t.Errorf("the heap has %d bytes", m.HeapSys)
	}
	if err := p.Delete(t.Context(), digest); err != nil {
		t.Error(err)
	}
}

// testSmall fills a place: what does not fit is refused, and what is there stays.
func testSmall(t *testing.T, p place) {
	s, room := p.harness.Small(t)
	old := Blob{Seed: 1, Size: 1000}
	put(t, s, old)
	if _, err := (Blob{Seed: 2, Size: 2 * room}).Put(t.Context(), s); !errors.Is(err, content.ErrNoSpace) {
		t.Errorf("%d bytes where there is room for %d: %v", 2*room, room, err)
	}
	// A writer whose Write failed does not commit what it has.
	w, err := s.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for piece := make([]byte, room/8+1); err == nil && w.Size() < 4*room; {
		_, err = w.Write(piece)
	}
	digest := w.Digest()
	wantError(t, "commit after a failed write", w.Commit(t.Context(), digest), content.ErrNoSpace)
	wantAbsent(t, s, digest)
	wantContent(t, s, old.Digest(), old.Bytes(t))
	// Nothing of them is left, so there is room again, and more than once.
	for seed := range uint64(4) {
		b := Blob{Seed: 10 + seed, Size: room / 2}
		wantContent(t, s, put(t, s, b), b.Bytes(t))
		if err := s.Delete(t.Context(), b.Digest()); err != nil {
			t.Error(err)
		}
	}
	wantBlobs(t, s, old.Digest())
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// sizes are those that a store may handle in different ways.
func (h Harness) sizes() []int64 {
	if len(h.Borders) == 0 {
		return []int64{1000}
	}
	return []int64{1000, slices.Min(h.Borders) + 1}
}
