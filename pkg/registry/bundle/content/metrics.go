// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	readBytes = metrics.NewCounter(&metrics.CounterOpts{
		Name: "rukpak_content_read_bytes_total", Help: "Bytes of content sent to readers.", StabilityLevel: metrics.ALPHA,
	})
	writes = metrics.NewCounterVec(&metrics.CounterOpts{
		Name: "rukpak_content_writes_total", Help: "Writes of content by result: committed, unchanged, refused, failed.", StabilityLevel: metrics.ALPHA,
	}, []string{"result"})
	indexBuilds = metrics.NewCounterVec(&metrics.CounterOpts{
		Name: "rukpak_content_indexes_total", Help: "Indexes of content by result: stored with it, rebuilt when they were missing or damaged, failed.", StabilityLevel: metrics.ALPHA,
	}, []string{"result"})
	writtenBytes = metrics.NewCounter(&metrics.CounterOpts{
		Name: "rukpak_content_written_bytes_total", Help: "Bytes of content committed.", StabilityLevel: metrics.ALPHA,
	})
)

func init() {
	legacyregistry.MustRegister(readBytes, writes, writtenBytes, indexBuilds)
}
