// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package filesystem_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"testing"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/contenttest"
)

func BenchmarkWrite(b *testing.B) {
	contenttest.BenchWrite(b, func(b *testing.B) content.Store {
		s := open(b, b.TempDir())
		b.Cleanup(func() {
			if err := s.Close(); err != nil {
				b.Error(err)
			}
		})
		return s
	})
}

func BenchmarkRead(b *testing.B) {
	for _, size := range contenttest.BenchSizes {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			s := open(b, b.TempDir())
			defer s.Close()
			digest, err := contenttest.Blob{Seed: 1, Size: size}.Put(b.Context(), s)
			if err != nil {
				b.Fatal(err)
			}
			buffer := make([]byte, contenttest.BenchChunk)
			b.SetBytes(size)
			for b.Loop() {
				r, err := s.Open(b.Context(), digest, 0, -1)
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, buffer); err != nil || n != size {
					b.Fatal(n, err)
				}
				if err := r.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkHash is the part of BenchmarkWrite that the digest costs.
func BenchmarkHash(b *testing.B) {
	text := contenttest.Blob{Seed: 1, Size: 64 << 20}.Bytes(b)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		sha256.Sum256(text)
	}
}
