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
	readDamaged = metrics.NewCounter(&metrics.CounterOpts{
		Name: "rukpak_content_read_damaged_total", Help: "Reads of content that were broken off because the bytes were not those of their digest.", StabilityLevel: metrics.ALPHA,
	})
	readers = metrics.NewGauge(&metrics.GaugeOpts{
		Name: "rukpak_content_readers", Help: "Reads of content that are under way.", StabilityLevel: metrics.ALPHA,
	})
	readersRefused = metrics.NewCounterVec(&metrics.CounterOpts{
		Name: "rukpak_content_readers_refused_total", Help: "Reads of content that were told to come again, by the limit that was met: server, user.", StabilityLevel: metrics.ALPHA,
	}, []string{"limit"})
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
	legacyregistry.MustRegister(readBytes, readDamaged, readers, readersRefused, writes, writtenBytes, indexBuilds)
}
