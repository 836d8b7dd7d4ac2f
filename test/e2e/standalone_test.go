// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"rukpak.io/apiserver/pkg/generated/clientset/versioned"
)

// in is the same scope for a test below the one that it was made for.
func (s *scope) in(t *testing.T) *scope {
	below := *s
	below.T = t
	return &below
}

// standalone starts a server without a cluster, with more flags, for as long as the test runs. What
// it returns has clients of that server, and the same names.
func (s *scope) standalone(flags ...string) *scope {
	s.Helper()
	folder := filepath.Join(s.TempDir(), "data")
	_, port, err := net.SplitHostPort(s.closedAddress())
	s.must(err)
	log, err := os.Create(filepath.Join(s.TempDir(), "log"))
	s.must(err)
	cmd := exec.Command(filepath.Join(binaries(), "rukpak-apiserver"), append([]string{"--standalone", "--data-dir=" + folder, "--secure-port=" + port}, flags...)...)
	cmd.Stdout, cmd.Stderr = log, log
	s.must(cmd.Start())
	s.Cleanup(func() {
		s.must(cmd.Process.Signal(syscall.SIGTERM))
		if err := cmd.Wait(); err != nil {
			s.Errorf("the standalone server ended with %v", err)
		}
		s.must(log.Close())
		if s.Failed() {
			text, err := os.ReadFile(log.Name())
			s.Logf("log of the standalone server (%v):\n%s", err, text)
		}
	})
	alone := *s
	s.eventually("the standalone server answers", func() error {
		config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(folder, "kubeconfig"))
		if err != nil {
			return err
		}
		if alone.bundles, err = versioned.NewForConfig(config); err != nil {
			return err
		}
		list, err := alone.bundles.RukpakV1alpha1().ProvisionerClasses().List(s.ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) == 0 {
			return fmt.Errorf("there are no classes yet")
		}
		return err
	})
	return &alone
}
