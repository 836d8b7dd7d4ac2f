// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"maps"
	"testing"

	"k8s.io/component-base/metrics/legacyregistry"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/contenttest"
	"rukpak.io/apiserver/pkg/content/etcdstore"
	"rukpak.io/apiserver/pkg/content/etcdtest"
)

// unbounded is a store that does not know how much it can hold, as a bucket.
type unbounded struct {
	content.Store
	room error
}

func (s *unbounded) Room(context.Context) error { return s.room }

// spaceOf returns the series of one store, by the ends of their names.
func spaceOf(t *testing.T, store string) map[string]float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found, names := map[string]float64{}, map[string]string{
		"rukpak_content_store_free_bytes": "free", "rukpak_content_store_capacity_bytes": "capacity", "rukpak_content_store_full": "full",
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if name, ok := names[f.GetName()]; ok && m.GetLabel()[0].GetValue() == store {
				found[name] = m.GetGauge().GetValue()
			}
		}
	}
	return found
}

func TestStoresTellTheirRoom(t *testing.T) {
	const capacity = 2 << 20
	etcd := etcdstore.New(etcdtest.Start(t), "/x", capacity)
	m := newSpaceMetrics()
	measured := func(name string, store content.Store, want map[string]float64) {
		t.Helper()
		if err := m.measure(t.Context(), name, store); err != nil {
			t.Error(err)
		}
		if got := spaceOf(t, name); !maps.Equal(got, want) {
			t.Errorf("store %s: %v, want %v", name, got, want)
		}
	}
	measured("small", etcd, map[string]float64{"free": capacity, "capacity": capacity, "full": 0})
	if _, err := (contenttest.Blob{Seed: 1, Size: capacity - 100}).Put(t.Context(), etcd); err != nil {
		t.Fatal(err)
	}
	measured("small", etcd, map[string]float64{"free": 100, "capacity": capacity, "full": 0})
	if _, err := (contenttest.Blob{Seed: 2, Size: 100}).Put(t.Context(), etcd); err != nil {
		t.Fatal(err)
	}
	measured("small", etcd, map[string]float64{"free": 0, "capacity": capacity, "full": 1})

	bucket := &unbounded{}
	measured("bucket", bucket, map[string]float64{"full": 0})
	bucket.room = content.ErrNoSpace
	measured("bucket", bucket, map[string]float64{"full": 1})
	bucket.room = errors.New("no answer")
	if err := m.measure(t.Context(), "bucket", bucket); !errors.Is(err, bucket.room) {
		t.Errorf("got %v", err)
	}
	if got := spaceOf(t, "bucket"); got["full"] != 1 {
		t.Errorf("nobody knows, and the metrics say %v", got)
	}
}
