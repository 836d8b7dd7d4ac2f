// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package stage says what the time of an attempt goes to. The reconciler sees the first two stages in
// the status of the pod, and whichever replica takes the content sees the others.
package stage

import (
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Stage is a part of an attempt.
type Stage string

// The stages, in their order.
const (
	// Scheduling ends when a node has been found for the pod.
	Scheduling Stage = "scheduling"
	// Pull is what the node does before the program runs: pull the images, mount them, start the containers.
	Pull Stage = "pull"
	// Walk is what the program reads and packs in.
	Walk Stage = "walk"
	// Upload is the rest of the time until the server has the last byte: the network, and the server's
	// checks. Of mode Direct it is all that follows the first byte.
	Upload Stage = "upload"
	// Commit is from the last byte to the status that names the content.
	Commit Stage = "commit"
)

var seconds = sync.OnceValue(func() *metrics.HistogramVec {
	m := metrics.NewHistogramVec(&metrics.HistogramOpts{
		Name:           "rukpak_unpack_stage_duration_seconds",
		Help:           "Time that attempts spend in a stage: scheduling and pull (of a pod, in whole seconds), walk, upload, commit.",
		Buckets:        []float64{0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600, 1800},
		StabilityLevel: metrics.ALPHA,
	}, []string{"stage"})
	legacyregistry.MustRegister(m)
	return m
})

// Observe counts the time that an attempt has spent in a stage. Less than nothing, as where clocks differ, is nothing.
func Observe(s Stage, d time.Duration) {
	seconds().WithLabelValues(string(s)).Observe(max(d, 0).Seconds())
}
