// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket_test

import (
	"testing"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/bucket"
	"rukpak.io/apiserver/pkg/content/contenttest"
	"rukpak.io/apiserver/pkg/content/s3test"
)

// BenchmarkWrite stores content in a real S3 server, which shares the machine.
func BenchmarkWrite(b *testing.B) {
	server := s3test.Start(b)
	server.Setenv(b)
	s := open(b, server.Bucket(b, "bench", ""), bucket.Options{})
	contenttest.BenchWrite(b, func(*testing.B) content.Store { return s })
}
