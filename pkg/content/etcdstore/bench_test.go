// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcdstore_test

import (
	"testing"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/contenttest"
	"rukpak.io/apiserver/pkg/content/etcdstore"
	"rukpak.io/apiserver/pkg/content/etcdtest"
)

// BenchmarkWrite stores content in an etcd of one member in this process, which does not sync.
func BenchmarkWrite(b *testing.B) {
	client := etcdtest.Start(b)
	s := etcdstore.New(client.KV, "/bench", 1<<30)
	contenttest.BenchWrite(b, func(*testing.B) content.Store { return s })
}
