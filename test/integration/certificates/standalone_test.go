// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/test/integration/harness"
)

// TestStandaloneRotates lets a server without a cluster replace its CA in its own time. Whoever reads its kubeconfig anew is
// let in all the while, and its authority outlives a restart.
func TestStandaloneRotates(t *testing.T) {
	t.Parallel()
	programs := must(harness.FindPrograms(t.Context()))(t)
	s := must(harness.StartStandalone(t.Context(), programs, t.TempDir(), "--serving-cert-validity=15s", "--ca-overlap=2s", "--ca-validity=20s"))(t)
	t.Cleanup(func() {
		if err := s.Kill(); err != nil {
			t.Error(err)
		}
	})
	list := func(ctx context.Context) error {
		client, err := s.Client()
		if err != nil {
			return err
		}
		_, err = client.RukpakV1alpha1().ProvisionerClasses().List(ctx, metav1.ListOptions{})
		return err
	}
	trusted := map[string]bool{}
	rotated := func(times int) {
		t.Helper()
		eventually(t, fmt.Sprintf("the authorities changed %d times", times), func(ctx context.Context) error {
			if err := list(ctx); err != nil {
				t.Fatal(err)
			}
			bundle, err := os.ReadFile(filepath.Join(s.Dir, "pki", "ca.crt"))
			trusted[string(bundle)] = true
			if err == nil && len(trusted) <= times {
				err = errors.New("not yet")
			}
			return err
		})
	}
	rotated(6)
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	rotated(8)
}
