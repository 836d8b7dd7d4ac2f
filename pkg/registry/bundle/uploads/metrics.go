// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package uploads

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Results of uploads.
const (
	resultCompleted = "completed"
	resultRefused   = "refused"
	resultAborted   = "aborted"
	resultExpired   = "expired"
)

var (
	begun = metrics.NewCounter(&metrics.CounterOpts{
		Name: "rukpak_uploads_begun_total", Help: "Uploads in parts that were begun.", StabilityLevel: metrics.ALPHA,
	})
	ended = metrics.NewCounterVec(&metrics.CounterOpts{
		Name: "rukpak_uploads_ended_total", Help: "Uploads in parts that ended, by result: completed, refused, aborted, expired.", StabilityLevel: metrics.ALPHA,
	}, []string{"result"})
	received = metrics.NewCounter(&metrics.CounterOpts{
		Name: "rukpak_uploads_received_bytes_total", Help: "Bytes of parts of uploads that were kept.", StabilityLevel: metrics.ALPHA,
	})
	openCount = metrics.NewGauge(&metrics.GaugeOpts{
		Name: "rukpak_uploads_open", Help: "Uploads in parts that are under way, as last seen by the replica that leads.", StabilityLevel: metrics.ALPHA,
	})
	openBytes = metrics.NewGauge(&metrics.GaugeOpts{
		Name: "rukpak_uploads_open_bytes", Help: "Bytes of uploads that are under way, as last seen by the replica that leads.", StabilityLevel: metrics.ALPHA,
	})
)

func init() {
	legacyregistry.MustRegister(begun, ended, received, openCount, openBytes)
}
