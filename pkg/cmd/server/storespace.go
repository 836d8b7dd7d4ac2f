// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/etcdstore"
	"rukpak.io/apiserver/pkg/content/filesystem"
)

// bounded is a content store that knows how much it can hold. A bucket does not.
type bounded interface {
	// Space returns how many bytes may still be written, and how many the store can hold, what others have in the same
	// place included.
	Space(ctx context.Context) (free, capacity int64, err error)
}

var (
	_ bounded = (*filesystem.Store)(nil)
	_ bounded = (*etcdstore.Store)(nil)
)

const (
	// storeSpaceInterval is how often each content store is asked for its room, and storeSpaceTimeout how long it may take to answer.
	storeSpaceInterval = 15 * time.Second
	storeSpaceTimeout  = 5 * time.Second
)

// spaceMetrics show what room the content stores have, as each replica sees it.
type spaceMetrics struct{ free, capacity, full *metrics.GaugeVec }

var newSpaceMetrics = sync.OnceValue(func() *spaceMetrics {
	gauge := func(name, help string) *metrics.GaugeVec {
		return metrics.NewGaugeVec(&metrics.GaugeOpts{Name: name, Help: help, StabilityLevel: metrics.ALPHA}, []string{"store"})
	}
	m := &spaceMetrics{
		free:     gauge("rukpak_content_store_free_bytes", "Bytes that may still be written to the content store, where it has a bound: that of a volume, or the capacity in etcd."),
		capacity: gauge("rukpak_content_store_capacity_bytes", "Bytes that the content store can hold, where it has a bound."),
		full:     gauge("rukpak_content_store_full", "1 while the content store takes no more content."),
	}
	legacyregistry.MustRegister(m.free, m.capacity, m.full)
	return m
})

// watchStoreSpace measures until ctx ends.
func (p *process) watchStoreSpace(ctx context.Context) error {
	m := newSpaceMetrics()
	for {
		for name, store := range p.stores {
			if err := m.measure(ctx, name, store); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).V(2).Info("Cannot ask a content store for its room", "store", name, "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(storeSpaceInterval):
		}
	}
}

// measure shows the room of one store. What it cannot learn stays as it was.
func (m *spaceMetrics) measure(ctx context.Context, name string, store content.Store) error {
	ctx, cancel := context.WithTimeout(ctx, storeSpaceTimeout)
	defer cancel()
	err := store.Room(ctx)
	switch {
	case err == nil:
		m.full.WithLabelValues(name).Set(0)
	case errors.Is(err, content.ErrNoSpace):
		m.full.WithLabelValues(name).Set(1)
	default:
		return err
	}
	s, ok := store.(bounded)
	if !ok {
		return nil
	}
	free, capacity, err := s.Space(ctx)
	if err != nil {
		return err
	}
	m.free.WithLabelValues(name).Set(float64(free))
	m.capacity.WithLabelValues(name).Set(float64(capacity))
	return nil
}
