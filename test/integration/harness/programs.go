// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package harness starts what the integration tests work against: etcd, kube-apiserver and
// kube-controller-manager as plain processes on the loopback address, and rukpak-apiserver behind the
// aggregator of that kube-apiserver, with exactly the permissions of artifacts/deploy; or alone.
package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Programs are where the executables are.
type Programs struct {
	// Root is the root of this module.
	Root string
	// Server is rukpak-apiserver.
	Server string

	kubernetes string
}

// FindPrograms finds the programs of Kubernetes in the folder that RUKPAK_BIN names, or else in
// _output/bin, and builds rukpak-apiserver. One that is missing is an error.
func FindPrograms(ctx context.Context) (Programs, error) {
	gomod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return Programs{}, fmt.Errorf("find the root of the module: %w", err)
	}
	p := Programs{Root: filepath.Dir(strings.TrimSpace(string(gomod)))}
	p.kubernetes = os.Getenv("RUKPAK_BIN")
	if p.kubernetes == "" {
		p.kubernetes = filepath.Join(p.Root, "_output", "bin")
	}
	var missing []error
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kubectl"} {
		if _, err := exec.LookPath(p.path(name)); err != nil {
			missing = append(missing, err)
		}
	}
	if err := errors.Join(missing...); err != nil {
		return Programs{}, fmt.Errorf("programs of Kubernetes are missing, which \"make kube-binaries\" builds: %w", err)
	}
	// A folder that stays: what is there and up to date is not linked again.
	p.Server = filepath.Join(p.Root, "_output", "integration", "rukpak-apiserver")
	build := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", p.Server, "./cmd/rukpak-apiserver")
	build.Dir = p.Root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return Programs{}, fmt.Errorf("build rukpak-apiserver: %w\n%s", err, out)
	}
	return p, nil
}

func (p Programs) path(name string) string { return filepath.Join(p.kubernetes, name) }

// Kubectl returns a command of kubectl with a kubeconfig. Its cache of discovery is in home.
func (p Programs) Kubectl(ctx context.Context, home, kubeconfig string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.path("kubectl"), args...)
	cmd.Dir = p.Root
	cmd.Env = []string{"KUBECONFIG=" + kubeconfig, "HOME=" + home, "PATH=" + os.Getenv("PATH"), "KUBECTL_KUBERC=false"}
	return cmd
}
