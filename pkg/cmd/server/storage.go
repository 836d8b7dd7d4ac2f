// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/content/collect"
	"rukpak.io/apiserver/pkg/content/reference"
	"rukpak.io/apiserver/pkg/content/upload"
	"rukpak.io/apiserver/pkg/etcd"
)

const (
	etcdDialTimeout = 5 * time.Second
	// holdTime is how long the API state must look lost until the collector believes it.
	holdTime = time.Hour
	// maxCommitTimeout bounds a commit, the copying of a large blob inside a remote store included.
	maxCommitTimeout = 5 * time.Minute
	// holdAbove is how few bundles may go at once without looking like a loss.
	holdAbove = 20
)

// openEtcd connects to the etcd that the flags name, or runs one over the data dir.
func (p *process) openEtcd(ctx context.Context, cancel context.CancelCauseFunc) error {
	transportConfig := &p.Recommended.Etcd.StorageConfig.Transport
	if len(transportConfig.ServerList) == 0 {
		embedded, err := etcd.StartWithQuota(ctx, p.etcdDir(), p.Space.EtcdQuota.Value())
		if err != nil {
			return err
		}
		p.onClose(embedded.Close)
		go func() {
			select {
			case err := <-embedded.Done():
				cancel(fmt.Errorf("the embedded etcd ended: %w", err))
			case <-ctx.Done():
			}
		}()
		transportConfig.ServerList = []string{embedded.Endpoint()}
		p.client = embedded.Client()
		return nil
	}
	transportConfig.EgressLookup = func(egressselector.NetworkContext) (utilnet.DialFunc, error) { return etcd.Dial, nil }
	dialer := grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return etcd.Dial(ctx, "tcp", address) })
	config := clientv3.Config{DialOptions: []grpc.DialOption{dialer}, Endpoints: transportConfig.ServerList, DialTimeout: etcdDialTimeout, DialKeepAliveTime: 30 * time.Second, DialKeepAliveTimeout: 10 * time.Second}
	if transportConfig.CertFile != "" || transportConfig.KeyFile != "" || transportConfig.TrustedCAFile != "" {
		info := transport.TLSInfo{CertFile: transportConfig.CertFile, KeyFile: transportConfig.KeyFile, TrustedCAFile: transportConfig.TrustedCAFile}
		tlsConfig, err := info.ClientConfig()
		if err != nil {
			return fmt.Errorf("read the certificates for etcd: %w", err)
		}
		config.TLS = tlsConfig
	}
	client, err := clientv3.New(config)
	if err != nil {
		return fmt.Errorf("connect to etcd: %w", err)
	}
	p.onClose(func() {
		if err := client.Close(); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot close the connection to etcd")
		}
	})
	p.client = client
	p.monitor = etcd.NewMonitor(client)
	return nil
}

// lookForEtcd finds out whether an etcd that can be away is there. The server starts without it: it answers discovery, and
// says to all else why it cannot answer.
func (p *process) lookForEtcd(ctx context.Context, _ context.CancelCauseFunc) error {
	if p.monitor != nil {
		if err := p.monitor.Look(ctx); err != nil {
			p.tellOfEtcd(err)
		}
	}
	return nil
}

// watchEtcd asks until ctx ends.
func (p *process) watchEtcd(ctx context.Context) error {
	p.monitor.Run(ctx, p.tellOfEtcd)
	return nil
}

func (p *process) tellOfEtcd(err error) {
	log := klog.Background().WithValues("servers", p.Recommended.Etcd.StorageConfig.Transport.ServerList)
	if err != nil {
		log.Error(err, "Etcd does not answer")
		return
	}
	log.Info("Etcd answers again")
}

// awaitEtcd returns when etcd is there, or ctx ends.
func (p *process) awaitEtcd(ctx context.Context) error {
	if p.monitor == nil {
		return nil
	}
	return p.monitor.Wait(ctx, p.tellOfEtcd)
}

// checkContent makes the condition ContentAvailable of every bundle follow what the store has: after the
// start, since a store may have been emptied while nobody looked, and whenever the collector misses something.
func (p *process) checkContent(ctx context.Context) error {
	p.requestCheck()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.recheck:
		}
		if err := p.instance.Wait(ctx); err != nil {
			return nil
		}
		bundles, err := p.server.Bundles.List(ctx)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot list bundles yet", "err", err)
			time.AfterFunc(time.Second, p.requestCheck)
			continue
		}
		p.server.Content.CheckAll(ctx, bundles)
	}
}

// requestCheck asks for a look at the stored content of all bundles, soon.
func (p *process) requestCheck() {
	select {
	case p.recheck <- struct{}{}:
	default: // one is asked for already
	}
}

// makeCollectors makes a collector for each store, which removes content that no bundle has any more.
func (p *process) makeCollectors() error {
	p.lacking.stores = slices.Sorted(maps.Keys(p.stores))
	for _, name := range p.lacking.stores {
		store := p.stores[name]
		collector, err := collect.New(collect.Config{
			StoreName: name, Store: store, Records: p.records, Live: p.guarded(name, p.live), Now: time.Now,
			Grace: p.Collect.Grace, Hold: holdTime, HoldAbove: holdAbove, Observe: p.observer(name),
		})
		if err != nil {
			return err
		}
		p.collectors = append(p.collectors, collector)
	}
	return nil
}

// triggerCollectors asks for a round soon. Where this process does not lead, that of the one that does comes in its time.
func (p *process) triggerCollectors() {
	for _, c := range p.collectors {
		c.Trigger()
	}
}

// observer tells what the collector of a store did and saw. Content that bundles name and that is gone is
// said to be so in their status.
func (p *process) observer(name string) func(collect.Report, error) {
	log := klog.Background().WithValues("store", name)
	return func(r collect.Report, err error) {
		for _, e := range append(r.Errors, err) {
			if e != nil && !errors.Is(e, context.Canceled) {
				log.Error(e, "Collecting content met a problem")
			}
		}
		if r.RemovedRefs+r.DeletedBlobs > 0 {
			log.Info("Collected content", "records", r.RemovedRefs, "blobs", r.DeletedBlobs, "bytes", r.DeletedBytes)
		}
		missing, changed := p.lacking.note(name, r)
		p.storeMetrics.observe(name, r, missing, err)
		if changed {
			p.requestCheck()
		}
	}
}

// live lists which content the bundles name, and the parts of uploads that are under way.
func (p *process) live(ctx context.Context) (map[collect.Pair]struct{}, error) {
	bundles, err := p.server.Bundles.List(ctx)
	if err != nil {
		return nil, err
	}
	pairs := map[collect.Pair]struct{}{}
	for i := range bundles {
		b := &bundles[i]
		for c := range b.Status.Contents() {
			pairs[collect.Pair{BundleUID: string(b.UID), Digest: c.Digest}] = struct{}{}
		}
	}
	parts, err := p.partsOfUploads(ctx)
	for _, ref := range parts {
		pairs[collect.Pair{BundleUID: ref.BundleUID, Digest: ref.Digest}] = struct{}{}
	}
	return pairs, err
}

// partsOfUploads lists the records of parts that are to be kept: those of uploads under way, and what one that cannot be read may have.
func (p *process) partsOfUploads(ctx context.Context) ([]reference.Ref, error) {
	var (
		parts      []reference.Ref
		unreadable []*upload.UnreadableError
	)
	for ref, err := range p.uploads.Refs(ctx) {
		if u, ok := errors.AsType[*upload.UnreadableError](err); ok {
			unreadable = append(unreadable, u)
		} else if err != nil {
			return nil, err
		} else {
			parts = append(parts, ref)
		}
	}
	if len(unreadable) == 0 {
		return parts, nil
	}
	for store := range p.stores {
		for rec, err := range p.records.List(ctx, store) {
			if err != nil {
				return nil, err
			}
			if slices.ContainsFunc(unreadable, func(u *upload.UnreadableError) bool { return u.MayHold(rec.BundleUID) }) {
				parts = append(parts, rec.Ref)
			}
		}
	}
	return parts, nil
}
