// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"sync"
	"sync/atomic"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	subresource "rukpak.io/apiserver/pkg/registry/bundle/content"
)

// usageKey is what the content of bundles is summed up by. There are as many of them as there are pairs of a namespace and a
// class with bundles: fewer than bundles.
type usageKey struct{ namespace, class string }

type usageSum struct {
	bundles int
	bytes   int64
}

// usage shows how much content the bundles have, as they name it: the same bytes of two bundles count twice.
type usage struct {
	metrics.BaseStableCollector
	bundles, bytes *metrics.Desc
	latest         atomic.Pointer[map[usageKey]usageSum]
}

var newUsage = sync.OnceValue(func() *usage {
	desc := func(name, help string) *metrics.Desc {
		return metrics.NewDesc(name, help, []string{"namespace", "class"}, nil, metrics.ALPHA, "")
	}
	u := &usage{
		bundles: desc("rukpak_content_namespace_bundles", "Bundles that have content."),
		bytes:   desc("rukpak_content_namespace_bytes", "Content that bundles have, current and in history. The same bytes of two bundles count twice."),
	}
	legacyregistry.CustomMustRegister(u)
	return u
})

// observe replaces what is shown, in one step, so that what is gone is not shown any more.
func (u *usage) observe(bundles []rukpak.Bundle) {
	sums := map[usageKey]usageSum{}
	for i := range bundles {
		b := &bundles[i]
		size := subresource.Bytes(&b.Status)
		if b.Status.Content == nil && size == 0 {
			continue
		}
		key := usageKey{b.Namespace, b.Spec.ProvisionerClassName}
		sum := sums[key]
		sum.bundles++
		sum.bytes += size
		sums[key] = sum
	}
	u.latest.Store(&sums)
}

// reset shows nothing any more.
func (u *usage) reset() { u.latest.Store(nil) }

// DescribeWithStability gives what is shown.
func (u *usage) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- u.bundles
	ch <- u.bytes
}

// CollectWithStability shows it.
func (u *usage) CollectWithStability(ch chan<- metrics.Metric) {
	sums := u.latest.Load()
	if sums == nil {
		return
	}
	for key, sum := range *sums {
		ch <- metrics.NewLazyConstMetric(u.bundles, metrics.GaugeValue, float64(sum.bundles), key.namespace, key.class)
		ch <- metrics.NewLazyConstMetric(u.bytes, metrics.GaugeValue, float64(sum.bytes), key.namespace, key.class)
	}
}
