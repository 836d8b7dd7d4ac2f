// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package stores

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"rukpak.io/apiserver/test/integration/harness"
)

// startTimeout bounds the start of everything, the build of the server included.
const startTimeout = 10 * time.Minute

var (
	full  = flag.Bool("full", false, "measure 1 GiB and 10,000 bundles too")
	limit = flag.Int("rounds", 3, "how often each figure is measured")
)

// shared is what all figures are measured on.
var shared struct {
	*harness.Cluster
	dir    string
	server *harness.Server
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := harness.MakeDir()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	shared.dir = dir
	code := 1
	if err := begin(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot start what is measured:", err)
	} else {
		code = m.Run()
	}
	if err := errors.Join(end(), os.RemoveAll(dir)); err != nil {
		fmt.Fprintln(os.Stderr, "cannot end what was measured:", err)
		code = 1
	}
	return code
}

func begin() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	programs, err := harness.FindPrograms(ctx)
	if err != nil {
		return err
	}
	shared.Cluster, err = harness.StartCluster(ctx, programs, shared.dir)
	return err
}

// TestFigures measures everything. A part alone:
//
//	make bench-stores TESTFLAGS='-run TestFigures/many'
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
