// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package readme runs the README's sessions on the real cluster.
package readme

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"rukpak.io/apiserver/test/readme"
)

// TestCluster types what the README shows for a cluster, in one folder, and compares what is printed.
func TestCluster(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	steps, err := readme.Steps(filepath.Join(root, "README.md"), "cluster")
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("KUBECONFIG") == "" {
		t.Fatal("KUBECONFIG is not set: make e2e does")
	}
	env := append(os.Environ(), "PATH="+filepath.Join(root, "_output", "bin")+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dir := t.TempDir()
	for _, step := range steps {
		if err := step.Run(ctx, dir, env); err != nil {
			t.Fatal(err)
		}
	}
}
