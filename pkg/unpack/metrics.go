// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	// The metrics of the work queue, workqueue_* with name="rukpak_unpack".
	_ "k8s.io/component-base/metrics/prometheus/workqueue"
)

var (
	attempts = metrics.NewCounterVec(&metrics.CounterOpts{
		Name:           "rukpak_unpack_attempts_total",
		Help:           "Attempts to unpack a bundle that have ended, by result (succeeded, failed, cancelled) and reason.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"result", "reason"})

	attemptSeconds = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Name:           "rukpak_unpack_attempt_duration_seconds",
		Help:           "Time from the beginning of an attempt to its end, by result and mode.",
		Buckets:        []float64{0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600, 1800},
		StabilityLevel: metrics.ALPHA,
	}, []string{"result", "mode"})

	inFlight = metrics.NewGauge(&metrics.GaugeOpts{
		Name:           "rukpak_unpack_attempts_in_flight",
		Help:           "Attempts that are running, as the replica sees it that unpacks.",
		StabilityLevel: metrics.ALPHA,
	})

	queued = metrics.NewGauge(&metrics.GaugeOpts{
		Name:           "rukpak_unpack_waiting",
		Help:           "Bundles that wait for a place to be unpacked, as the replica sees it that unpacks.",
		StabilityLevel: metrics.ALPHA,
	})

	sharedPods = metrics.NewCounter(&metrics.CounterOpts{
		Name:           "rukpak_unpack_shared_pods_total",
		Help:           "Unpack pods that were made for several bundles.",
		StabilityLevel: metrics.ALPHA,
	})

	apart = metrics.NewCounter(&metrics.CounterOpts{
		Name:           "rukpak_unpack_apart_total",
		Help:           "Bundles that went on alone because a shared pod did not bring their content.",
		StabilityLevel: metrics.ALPHA,
	})

	podsInFlight = metrics.NewGauge(&metrics.GaugeOpts{
		Name:           "rukpak_unpack_pods_in_flight",
		Help:           "Unpack pods that exist, as the replica sees it that unpacks.",
		StabilityLevel: metrics.ALPHA,
	})

	narrowed = metrics.NewGauge(&metrics.GaugeOpts{
		Name:           "rukpak_unpack_narrowed_namespaces",
		Help:           "Namespaces that may have fewer unpack pods than at first, since pods of theirs did not start, as the replica sees it that unpacks.",
		StabilityLevel: metrics.ALPHA,
	})

	caught = metrics.NewCounter(&metrics.CounterOpts{
		Name:           "rukpak_unpack_panics_total",
		Help:           "Panics over a bundle or an image that were caught.",
		StabilityLevel: metrics.ALPHA,
	})

	register sync.Once
)

// registerMetrics adds the metrics to those that the server serves.
func registerMetrics() {
	register.Do(func() {
		legacyregistry.MustRegister(attempts, attemptSeconds, inFlight, podsInFlight, queued, sharedPods, apart, narrowed, caught)
	})
}
