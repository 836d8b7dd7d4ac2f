// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package integration tests rukpak-apiserver behind the aggregator of a real kube-apiserver. The package
// starts one control plane and one server for all tests; each test has its own namespace. Tests that kill
// something start their own.
package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"rukpak.io/apiserver/test/integration/harness"
)

// startTimeout bounds the start of everything, the build of the server included.
const startTimeout = 10 * time.Minute

// shared is what all tests work against.
var shared struct {
	*harness.Cluster
	server *harness.Server
}

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := harness.MakeDir()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := 1
	if err := begin(dir); err != nil {
		fmt.Fprintln(os.Stderr, "cannot start what the tests work against:", err)
	} else {
		code = m.Run()
	}
	if err := end(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot end what the tests worked against:", err)
		code = 1
	}
	if code != 0 {
		logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
		fmt.Fprintln(os.Stderr, "the logs are kept:", logs)
		return code
	}
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func begin(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	programs, err := harness.FindPrograms(ctx)
	if err != nil {
		return err
	}
	if shared.Cluster, err = harness.StartCluster(ctx, programs, dir); err != nil {
		return err
	}
	shared.server, err = shared.Deploy(ctx)
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
