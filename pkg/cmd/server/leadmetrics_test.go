// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"maps"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/legacyregistry"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/content/verify"
)

// series sums the series of each gauge of some names.
func series(t *testing.T, names ...string) map[string]float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if slices.Contains(names, f.GetName()) {
				found[f.GetName()] += m.GetGauge().GetValue()
			}
		}
	}
	return found
}

func TestAPassThatNeverEndsGetsLate(t *testing.T) {
	const late = "rukpak_content_scrub_last_completed_timestamp_seconds"
	m, begun, ended := newScrubMetrics(), time.Unix(1_000_000, 0), time.Unix(2_000_000, 0)
	m.completed.Reset()
	for _, step := range []struct {
		progress verify.Progress
		want     map[string]float64
	}{
		{verify.Progress{}, map[string]float64{}},
		{verify.Progress{Started: begun}, map[string]float64{late: 1_000_000}},
		{verify.Progress{Started: begun, Position: "sha256:…", Blobs: 7}, map[string]float64{late: 1_000_000}},
		{verify.Progress{Started: begun, Completed: ended}, map[string]float64{late: 2_000_000}},
		{verify.Progress{Started: ended.Add(time.Hour), Completed: ended}, map[string]float64{late: 2_000_000}},
	} {
		m.show("default", step.progress)
		if got := series(t, late); !maps.Equal(got, step.want) {
			t.Errorf("%+v: got %v, want %v", step.progress, got, step.want)
		}
	}
	m.completed.Reset()
}

func TestAFormerLeaderShowsNothingThatItSaw(t *testing.T) {
	names := []string{
		"rukpak_leader", "rukpak_content_store_blobs", "rukpak_content_gc_held", "rukpak_content_namespace_bundles", "rukpak_content_scrub_last_completed_timestamp_seconds",
	}
	p := &process{storeMetrics: newStoreMetrics()}
	end := p.beginLeading()
	p.storeMetrics.blobs.WithLabelValues("default").Set(1)
	p.storeMetrics.held.WithLabelValues("default").Set(1)
	newScrubMetrics().completed.WithLabelValues("default").Set(1)
	newUsage().observe([]rukpak.Bundle{{ObjectMeta: metav1.ObjectMeta{Namespace: "a"}, Status: rukpak.BundleStatus{Content: &rukpak.ContentStatus{Size: 1}}}})
	for _, name := range names {
		if got := series(t, name)[name]; got != 1 {
			t.Errorf("%s of a leader is %v", name, got)
		}
	}
	end()
	if got := series(t, names...); !maps.Equal(got, map[string]float64{"rukpak_leader": 0}) {
		t.Errorf("a former leader shows %v", got)
	}
}
