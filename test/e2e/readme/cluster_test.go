// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package readme runs the sessions of the README and of the docs on the real cluster.
package readme

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"rukpak.io/apiserver/test/readme"
)

// TestSessions types what the pages show for a cluster, each session in one folder, and compares what is printed.
func TestSessions(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("KUBECONFIG") == "" {
		t.Fatal("KUBECONFIG is not set: make e2e does")
	}
	env := append(os.Environ(), "PATH="+filepath.Join(root, "_output", "bin")+":"+os.Getenv("PATH"))
	for _, session := range []struct{ page, name string }{
		{"README.md", "cluster"},
		{"docs/recipes.md", "recipes"},
		{"docs/rbac.md", "rbac"},
		{"docs/provisioners.md", "provisioner"},
		{"docs/migration.md", "migration"},
		{"docs/fetch.md", "fetch"},
	} {
		t.Run(session.name, func(t *testing.T) {
			t.Parallel()
			steps, err := readme.Steps(filepath.Join(root, session.page), session.name)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			dir := t.TempDir()
			// Some name files of the repository.
			if err := os.Symlink(filepath.Join(root, "artifacts"), filepath.Join(dir, "artifacts")); err != nil {
				t.Fatal(err)
			}
			for _, step := range steps {
				if err := step.Run(ctx, dir, env); err != nil {
					t.Fatalf("%s: %v", session.page, err)
				}
			}
		})
	}
}
