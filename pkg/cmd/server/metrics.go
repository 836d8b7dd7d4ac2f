// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/content/collect"
	"rukpak.io/apiserver/pkg/content/filesystem"
)

// storeMetrics show the state of the content store, as the latest round of the collector saw it.
type storeMetrics struct {
	blobs, bytes, free, missing, held *metrics.Gauge
	failures                          *metrics.Counter
}

var newStoreMetrics = sync.OnceValue(func() *storeMetrics {
	gauge := func(name, help string) *metrics.Gauge {
		return metrics.NewGauge(&metrics.GaugeOpts{Name: "rukpak_content_" + name, Help: help, StabilityLevel: metrics.ALPHA})
	}
	m := &storeMetrics{
		blobs:   gauge("store_blobs", "Blobs in the content store."),
		bytes:   gauge("store_bytes", "Size of the blobs in the content store."),
		free:    gauge("store_free_bytes", "Free space of the volume of the content store."),
		missing: gauge("missing", "Contents that bundles name and that cannot be read."),
		held:    gauge("gc_held", "1 while nothing is collected because the state of the API looks lost."),
		failures: metrics.NewCounter(&metrics.CounterOpts{
			Name: "rukpak_content_gc_failures_total", Help: "Steps of the collector that failed.", StabilityLevel: metrics.ALPHA,
		}),
	}
	legacyregistry.MustRegister(m.blobs, m.bytes, m.free, m.missing, m.held, m.failures)
	return m
})

func (m *storeMetrics) observe(r collect.Report, err error, store *filesystem.Store) {
	m.held.Set(0)
	if errors.Is(err, collect.ErrHeld) {
		m.held.Set(1)
	} else if err != nil {
		m.failures.Inc()
	}
	m.failures.Add(float64(r.Failures))
	m.blobs.Set(float64(r.Blobs))
	m.bytes.Set(float64(r.BlobBytes))
	m.missing.Set(float64(len(r.Missing)))
	free, _, err := store.Space()
	if err != nil {
		klog.Background().Error(err, "Cannot measure the space of the content store")
		return
	}
	m.free.Set(float64(free))
}
