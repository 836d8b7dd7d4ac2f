// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"runtime"
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// newLeaderMetric shows which replica leads.
var newLeaderMetric = sync.OnceValue(func() *metrics.Gauge {
	m := metrics.NewGauge(&metrics.GaugeOpts{
		Name: "rukpak_leader", Help: "1 on the replica that leads: it unpacks, collects and reads stored content again. 0 on others.", StabilityLevel: metrics.ALPHA,
	})
	legacyregistry.MustRegister(m)
	return m
})

// showBuild shows which build this is.
var showBuild = sync.OnceFunc(func() {
	m := metrics.NewGaugeVec(&metrics.GaugeOpts{
		Name: "rukpak_build_info", Help: "1, with the version of the server, and of Go that it was built with.", StabilityLevel: metrics.ALPHA,
	}, []string{"version", "go_version", "platform"})
	legacyregistry.MustRegister(m)
	m.WithLabelValues(version, runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH).Set(1)
})

// beginLeading shows that this replica leads, until the function that it returns is called. What only a leader sees is
// not shown from then on: it would be ever older, and beside that of the replica which leads.
func (p *process) beginLeading() (end func()) {
	leads := newLeaderMetric()
	leads.Set(1)
	return func() {
		leads.Set(0)
		p.storeMetrics.reset()
		p.lacking.reset()
		newUsage().reset()
		newScrubMetrics().completed.Reset()
	}
}
