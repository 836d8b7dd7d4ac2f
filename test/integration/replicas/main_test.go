// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package replicas tests several servers at once: behind the aggregator of a real kube-apiserver and a balancer that knows no more
// than which of them is ready, over an etcd of three members with mutual TLS.
package replicas

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"rukpak.io/apiserver/test/integration/harness"
)

const (
	replicas = 3
	members  = 3
)

// shared is what the tests work against. They break it, so none is parallel, and each leaves it whole.
var shared struct {
	*harness.Cluster
	*harness.Replicas
	etcd *harness.EtcdCluster
	// wires lead to the members, one for each.
	wires []*harness.Wire
}

func TestMain(m *testing.M) { os.Exit(harness.Run(m, begin, end)) }

func begin(ctx context.Context, dir string) error {
	programs, err := harness.FindPrograms(ctx)
	if err != nil {
		return err
	}
	if shared.Cluster, err = harness.StartCluster(ctx, programs, dir); err != nil {
		return err
	}
	if err := shared.Prepare(ctx); err != nil {
		return err
	}
	if shared.etcd, err = shared.StartEtcdCluster(ctx, filepath.Join(dir, "e"), members); err != nil {
		return err
	}
	var urls []string
	for _, url := range shared.etcd.Endpoints() {
		wire, err := harness.StartWire(url)
		if err != nil {
			return err
		}
		shared.wires = append(shared.wires, wire)
		urls = append(urls, wire.URL)
	}
	flags := append(shared.etcd.Flags(urls...), "--content-store=default=etcd:", "--shutdown-delay-duration=2s")
	shared.Replicas, err = shared.DeployReplicas(ctx, replicas, flags...)
	return err
}

func end() error {
	var errs []error
	if shared.Replicas != nil {
		errs = append(errs, shared.Replicas.Stop())
	}
	for _, w := range shared.wires {
		errs = append(errs, w.Stop())
	}
	if shared.etcd != nil {
		errs = append(errs, shared.etcd.Stop())
	}
	if shared.Cluster != nil {
		errs = append(errs, shared.Cluster.Stop())
	}
	return errors.Join(errs...)
}
