// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os/exec"
	"strings"
	"testing"
)

// TestClientsStayLight keeps what consumers import free of the server's own dependencies.
func TestClientsStayLight(t *testing.T) {
	for _, pattern := range []string{
		"./pkg/apis/rukpak/v1alpha1", "./pkg/generated/clientset/...", "./pkg/generated/informers/...", "./pkg/generated/listers/...", "./pkg/generated/applyconfiguration/...",
		"./pkg/bundleclient", "./pkg/fetch", "./cmd/rukpak-fetch",
	} {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", pattern)
		cmd.Dir = shared.Root
		deps := strings.Fields(string(must(cmd.Output())(t)))
		if len(deps) < 50 {
			t.Errorf("%s has %d dependencies: that cannot be all", pattern, len(deps))
		}
		for _, dep := range deps {
			for _, heavy := range []string{"k8s.io/apiserver/", "go.etcd.io/", "google.golang.org/grpc"} {
				if strings.HasPrefix(dep, heavy) {
					t.Errorf("%s imports %s", pattern, dep)
				}
			}
		}
	}
}
