// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// parallel is how many tests run at once. They wait for the cluster more than they
// compute, so it is no matter of processors.
const parallel = "8"

func TestMain(m *testing.M) {
	flag.Parse()
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// prepare makes sure that there is a cluster to test, and that its programs are found.
func prepare() error {
	if os.Getenv("KUBECONFIG") == "" {
		return fmt.Errorf("KUBECONFIG is not set: `make e2e` brings up a cluster and runs these tests on it")
	}
	if err := os.Setenv("PATH", binaries()+string(os.PathListSeparator)+os.Getenv("PATH")); err != nil {
		return err
	}
	return flag.Set("test.parallel", parallel)
}

// binaries is the folder of the programs that make builds.
func binaries() string {
	folder, err := filepath.Abs("../../_output/bin")
	if err != nil {
		panic(err) // there is no working directory
	}
	return folder
}
