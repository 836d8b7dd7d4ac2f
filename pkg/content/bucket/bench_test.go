// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket_test

import (
	"fmt"
	"testing"

	"rukpak.io/apiserver/pkg/content/bucket"
	"rukpak.io/apiserver/pkg/content/contenttest"
	"rukpak.io/apiserver/pkg/content/s3test"
)

// BenchmarkWrite stores content in a real S3 server, which shares the machine.
func BenchmarkWrite(b *testing.B) {
	server := s3test.Start(b)
	server.Setenv(b)
	s := open(b, server.Bucket(b, "bench", ""), bucket.Options{})
	for _, size := range []int64{20 << 10, 64 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			text := contenttest.Blob{Seed: 1, Size: size}.Bytes(b)
			b.SetBytes(size)
			for b.Loop() {
				w, err := s.Create(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				for rest := text; len(rest) > 0; rest = rest[min(32<<10, len(rest)):] {
					if _, err := w.Write(rest[:min(32<<10, len(rest))]); err != nil {
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
