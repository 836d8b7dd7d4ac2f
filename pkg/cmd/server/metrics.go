// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"rukpak.io/apiserver/pkg/content/collect"
)

// storeMetrics show the state of the content stores, as the latest round of each collector saw it. The replica
// that leads has them.
type storeMetrics struct {
	blobs, bytes, missing, held             *metrics.GaugeVec
	garbageRefs, garbageBlobs, garbageBytes *metrics.GaugeVec
	failures                                *metrics.CounterVec
}

var newStoreMetrics = sync.OnceValue(func() *storeMetrics {
	labels := []string{"store"}
	gauge := func(name, help string) *metrics.GaugeVec {
		return metrics.NewGaugeVec(&metrics.GaugeOpts{Name: name, Help: help, StabilityLevel: metrics.ALPHA}, labels)
	}
	m := &storeMetrics{
		blobs:   gauge("rukpak_content_store_blobs", "Blobs in the content store."),
		bytes:   gauge("rukpak_content_store_bytes", "Size of the blobs in the content store."),
		missing: gauge("rukpak_content_missing", "Contents that bundles name and that cannot be read."),
		held:    gauge("rukpak_content_gc_held", "1 while nothing is collected because the state of the API looks lost."),

		garbageRefs:  gauge("rukpak_content_garbage_records", "Records of content that no bundle names: what the collector removes in time, or would if it was not held."),
		garbageBlobs: gauge("rukpak_content_garbage_blobs", "Blobs that no bundle names: what the collector removes in time, or would if it was not held."),
		garbageBytes: gauge("rukpak_content_garbage_bytes", "Size of the blobs that no bundle names."),

		failures: metrics.NewCounterVec(&metrics.CounterOpts{
			Name: "rukpak_content_gc_failures_total", Help: "Steps of the collector that failed.", StabilityLevel: metrics.ALPHA,
		}, labels),
	}
	legacyregistry.MustRegister(m.blobs, m.bytes, m.missing, m.held, m.garbageRefs, m.garbageBlobs, m.garbageBytes, m.failures)
	return m
})

// reset shows nothing any more: a replica that does not lead has seen nothing lately.
func (m *storeMetrics) reset() {
	for _, g := range []*metrics.GaugeVec{m.blobs, m.bytes, m.missing, m.held, m.garbageRefs, m.garbageBlobs, m.garbageBytes} {
		g.Reset()
	}
}

func (m *storeMetrics) observe(name string, r collect.Report, missing int, err error) {
	held := 0.0
	if errors.Is(err, collect.ErrHeld) {
		held = 1
	} else if err != nil {
		m.failures.WithLabelValues(name).Inc()
	}
	m.held.WithLabelValues(name).Set(held)
	m.failures.WithLabelValues(name).Add(float64(r.Failures))
	m.blobs.WithLabelValues(name).Set(float64(r.Blobs))
	m.bytes.WithLabelValues(name).Set(float64(r.BlobBytes))
	m.missing.WithLabelValues(name).Set(float64(missing))
	m.garbageRefs.WithLabelValues(name).Set(float64(r.GarbageRefs))
	m.garbageBlobs.WithLabelValues(name).Set(float64(r.GarbageBlobs))
	m.garbageBytes.WithLabelValues(name).Set(float64(r.GarbageBytes))
}
