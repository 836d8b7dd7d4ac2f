// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package stores

import (
	"context"
	"errors"
	"flag"
	"os"
	"testing"

	"rukpak.io/apiserver/test/integration/harness"
)

var (
	full  = flag.Bool("full", false, "measure 1 GiB and 10,000 bundles too")
	limit = flag.Int("rounds", 3, "how often each figure is measured")

	// A part of the transfers: what is empty is everything.
	onlyStore   = flag.String("store", "", "measure the transfers of this store alone: default, etcd or bucket")
	onlyLoad    = flag.String("size", "", "measure the transfers of this size alone, as \"64 MiB\"")
	onlyClients = flag.Int("clients", 0, "measure the transfers of so many clients alone")
	onlyWay     = flag.String("way", "", "measure the transfers of this way alone, as \"straight\"")
)

// shared is what all figures are measured on.
var shared struct {
	*harness.Cluster
	dir    string
	server *harness.Server
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(harness.Run(m, begin, end))
}

func begin(ctx context.Context, dir string) error {
	shared.dir = dir
	programs, err := harness.FindPrograms(ctx)
	if err != nil {
		return err
	}
	shared.Cluster, err = harness.StartCluster(ctx, programs, dir)
	return err
}

// TestFigures measures everything. A part alone:
//
//	make bench-stores TESTFLAGS='-run TestFigures/many'
//	make bench-stores TESTFLAGS='-run TestFigures/transfers' STORESFLAGS='-store bucket -size "64 MiB" -clients 64'
func TestFigures(t *testing.T) {
	var err error
	if shared.server, err = shared.Deploy(t.Context(), storeFlags(t)...); err != nil {
		t.Fatal(err)
	}
	t.Run("transfers", measureTransfers)
	t.Run("many", measureMany)
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
