// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package contenttest

import (
	"fmt"
	"testing"

	"rukpak.io/apiserver/pkg/content"
)

// BenchSizes are the sizes, in bytes, of the content that stores are measured with.
var BenchSizes = []int64{20 << 10, 64 << 20}

// BenchChunk is how much the server writes to a store, and reads from it, at a time, in bytes.
const BenchChunk = 256 << 10

// BenchWrite measures how a store takes content, from Create to Commit. Each size gets a store of its own.
func BenchWrite(b *testing.B, open func(*testing.B) content.Store) {
	for _, size := range BenchSizes {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			s := open(b)
			text := Blob{Seed: 1, Size: size}.Bytes(b)
			b.SetBytes(size)
			for b.Loop() {
				w, err := s.Create(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				for rest := text; len(rest) > 0; rest = rest[min(BenchChunk, len(rest)):] {
					if _, err := w.Write(rest[:min(BenchChunk, len(rest))]); err != nil {
						b.Fatal(err)
					}
				}
				if err := w.Commit(b.Context(), w.Digest()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
