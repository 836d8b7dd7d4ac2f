// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package integration tests rukpak-apiserver behind the aggregator of a real kube-apiserver. The package
// starts one control plane and one server for all tests; each test has its own namespace. Tests that kill
// something start their own.
package integration

import (
	"context"
	"errors"
	"os"
	"testing"

	"rukpak.io/apiserver/test/integration/harness"
)

// shared is what all tests work against.
var shared struct {
	*harness.Cluster
	server *harness.Server
	traces *traceCollector
}

func TestMain(m *testing.M) {
	os.Exit(harness.Run(m, begin, end))
}

func begin(ctx context.Context, dir string) error {
	programs, err := harness.FindPrograms(ctx)
	if err != nil {
		return err
	}
	if shared.Cluster, err = harness.StartCluster(ctx, programs, dir); err != nil {
		return err
	}
	var tracing string
	if shared.traces, tracing, err = startCollector(dir); err != nil {
		return err
	}
	// Spans are sent as they end, and not every five seconds.
	if err := os.Setenv("OTEL_BSP_SCHEDULE_DELAY", "100"); err != nil {
		return err
	}
	shared.server, err = shared.Deploy(ctx, "--tracing-config-file="+tracing)
	return err
}

func end() error {
	var errs []error
	if shared.server != nil && shared.server.Process != nil {
		errs = append(errs, shared.server.Kill())
	}
	if shared.Cluster != nil {
		errs = append(errs, shared.Cluster.Stop())
	}
	return errors.Join(errs...)
}
