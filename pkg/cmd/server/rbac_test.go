// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// grants are the rights that the server's own roles in artifacts/deploy give, one by one.
func grants(t *testing.T) map[string]bool {
	t.Helper()
	data, err := os.ReadFile("../../../artifacts/deploy/base/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		var role rbacv1.Role // a ClusterRole has the same fields
		if err := decoder.Decode(&role); errors.Is(err, io.EOF) {
			return found
		} else if err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			names := rule.ResourceNames
			if len(names) == 0 {
				names = []string{""}
			}
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, name := range names {
						for _, verb := range rule.Verbs {
							found[strings.Join([]string{role.Namespace, group, resource, name, verb}, "|")] = true
						}
					}
				}
			}
		}
	}
}

// TestRolesGrantWhatIsUsed holds the roles that are shipped against what the server says at its start that it needs, and why.
func TestRolesGrantWhatIsUsed(t *testing.T) {
	o := NewOptions()
	o.Namespace, o.ServiceName = "rukpak-system", "rukpak-apiserver"
	used := map[string]bool{}
	for _, p := range o.permissions(true) {
		if p.why == "" {
			t.Errorf("nobody knows what %v is for", p)
		}
		if p.resource == "tokenreviews" || p.resource == "subjectaccessreviews" || p.namespace == "kube-system" {
			continue // by roles of Kubernetes
		}
		resource := p.resource
		if p.subresource != "" {
			resource += "/" + p.subresource
		}
		for _, verb := range p.verbs {
			used[strings.Join([]string{p.namespace, p.group, resource, p.name, verb}, "|")] = true
		}
	}
	granted := grants(t)
	for _, g := range slices.Sorted(maps.Keys(granted)) {
		if !used[g] {
			t.Errorf("granted and not used: %s", g)
		}
	}
	for _, u := range slices.Sorted(maps.Keys(used)) {
		if !granted[u] {
			t.Errorf("used and not granted: %s", u)
		}
	}
}
