// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/etcd"
)

// SpaceOptions are the flags that bound what is stored.
type SpaceOptions struct {
	// PerNamespace bounds the bytes of content that the bundles of a namespace name; 0 is no bound.
	PerNamespace resource.QuantityValue
	// EtcdQuota bounds the database of the embedded etcd, in bytes.
	EtcdQuota resource.QuantityValue
}

func newSpaceOptions() SpaceOptions {
	return SpaceOptions{
		PerNamespace: resource.QuantityValue{Quantity: *resource.NewQuantity(0, resource.BinarySI)},
		EtcdQuota:    resource.QuantityValue{Quantity: *resource.NewQuantity(etcd.DefaultQuota, resource.BinarySI)},
	}
}

func (o *SpaceOptions) addFlags(content, etcd *pflag.FlagSet) {
	content.Var(&o.PerNamespace, "max-content-bytes-per-namespace", "How many bytes of content, current and in history, the bundles of one namespace may have together, such as 10Gi. Content that two of them have counts twice. 0 is no bound.")
	etcd.Var(&o.EtcdQuota, "embedded-etcd-quota", "How large the database of the embedded etcd may get. Beyond it nothing can be written until it is compacted; see the command etcd-recover.")
}

func (o *SpaceOptions) validate() []error {
	var errs []error
	if o.PerNamespace.Sign() < 0 {
		errs = append(errs, fmt.Errorf("--max-content-bytes-per-namespace: %s is negative", o.PerNamespace.String()))
	}
	if q := o.EtcdQuota.Value(); q < etcd.MinQuota || q > etcd.MaxQuota {
		errs = append(errs, fmt.Errorf("--embedded-etcd-quota: %s is not between %d and %d", o.EtcdQuota.String(), etcd.MinQuota, int64(etcd.MaxQuota)))
	}
	return errs
}

// etcdDir is where the embedded etcd is.
func (p *process) etcdDir() string { return filepath.Join(p.DataDir, "etcd") }

// roomInterval is how often bundles that wait for room are looked for.
const roomInterval = 10 * time.Second

// watchRoom counts what bundles have, and ends the waiting of those that wait for room in their content store, until ctx ends.
func (p *process) watchRoom(ctx context.Context) error {
	for {
		// What another etcd has is not to be counted, nor changed.
		if err := p.instance.Wait(ctx); err != nil {
			return nil
		}
		bundles, err := p.server.Bundles.ListCached(ctx)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot list bundles yet", "err", err)
		}
		if err == nil {
			newUsage().observe(bundles)
			p.server.Content.CheckRoom(ctx, bundles)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(roomInterval):
		}
	}
}
