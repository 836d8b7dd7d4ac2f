// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package stores

import (
	"testing"

	"rukpak.io/apiserver/pkg/content/s3test"
)

// storeNames are the stores that are measured, by the names that classes use.
var storeNames = []string{"default", "etcd", "bucket"}

// storeFlags starts what the stores need, and returns the flags of the server for them.
func storeFlags(t *testing.T) []string {
	t.Helper()
	s3 := s3test.Start(t)
	s3.Setenv(t)
	return []string{
		"--content-store=etcd=etcd:?capacity=4Gi",
		"--content-store=bucket=" + s3.Bucket(t, "content", "").String(),
	}
}
