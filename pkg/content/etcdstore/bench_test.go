// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcdstore_test

import (
	"fmt"
	"testing"

	"rukpak.io/apiserver/pkg/content/contenttest"
	"rukpak.io/apiserver/pkg/content/etcdstore"
	"rukpak.io/apiserver/pkg/content/etcdtest"
)

// BenchmarkWrite stores content in an etcd of one member in this process, which does not sync.
func BenchmarkWrite(b *testing.B) {
	client := etcdtest.Start(b)
	s := etcdstore.New(client.KV, "/bench", 1<<30)
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
