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

	"rukpak.io/apiserver/pkg/etcd"
)

const (
	// etcdSpaceInterval is how often etcd is asked for its space, and etcdSpaceTimeout how long it may take to answer.
	etcdSpaceInterval = 30 * time.Second
	etcdSpaceTimeout  = 2 * time.Second
)

type etcdMetrics struct{ noSpace, size, inUse, quota *metrics.Gauge }

var newEtcdMetrics = sync.OnceValue(func() *etcdMetrics {
	gauge := func(name, help string) *metrics.Gauge {
		return metrics.NewGauge(&metrics.GaugeOpts{Name: name, Help: help, StabilityLevel: metrics.ALPHA})
	}
	m := &etcdMetrics{
		noSpace: gauge("rukpak_etcd_nospace_alarm", "1 while etcd takes no writes because its database is as large as it may be."),
		size:    gauge("rukpak_etcd_db_bytes", "Size of the database of etcd, of its largest member."),
		inUse:   gauge("rukpak_etcd_db_used_bytes", "How much of the database of etcd is used."),
		quota:   gauge("rukpak_etcd_db_quota_bytes", "How large the database of etcd may get; 0 where it does not say."),
	}
	legacyregistry.MustRegister(m.noSpace, m.size, m.inUse, m.quota)
	return m
})

// watchEtcdSpace measures until ctx ends, and says so in the log when etcd becomes full, or is not so any more.
func (p *process) watchEtcdSpace(ctx context.Context) error {
	m, full := newEtcdMetrics(), false
	for {
		space, err := p.readEtcdSpace(ctx)
		switch {
		case err != nil:
			klog.FromContext(ctx).V(2).Info("Cannot ask etcd for its space", "err", err)
		default:
			m.size.Set(float64(space.Size))
			m.inUse.Set(float64(space.InUse))
			m.quota.Set(float64(space.Quota))
			m.noSpace.Set(0)
			if space.NoSpace {
				m.noSpace.Set(1)
			}
			if space.NoSpace != full {
				full = space.NoSpace
				if full {
					klog.FromContext(ctx).Error(errors.New(etcd.NoSpaceMessage), "Etcd is full", "size", space.Size, "used", space.InUse, "quota", space.Quota)
				} else {
					klog.FromContext(ctx).Info("Etcd takes writes again", "size", space.Size, "quota", space.Quota)
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(etcdSpaceInterval):
		}
	}
}

func (p *process) readEtcdSpace(ctx context.Context) (etcd.Space, error) {
	ctx, cancel := context.WithTimeout(ctx, etcdSpaceTimeout)
	defer cancel()
	return etcd.ReadSpace(ctx, p.client)
}
