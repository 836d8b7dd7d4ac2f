// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	fakediscovery "k8s.io/client-go/discovery/fake"
	kubetesting "k8s.io/client-go/testing"
)

// A plugin that waits for what an older cluster does not have would keep the server from ever being ready.
func TestServedPolicies(t *testing.T) {
	const validating, mutating = "ValidatingAdmissionPolicy", "MutatingAdmissionPolicy"
	for name, test := range map[string]struct {
		serves            []string // nil: the cluster does not answer
		enabled, disabled []string
		want              []string // that are off
	}{
		"1.36":               {serves: []string{"validatingadmissionpolicies", "mutatingadmissionpolicies"}},
		"1.35":               {serves: []string{"validatingadmissionpolicies"}, want: []string{mutating}},
		"1.29":               {serves: []string{"validatingwebhookconfigurations"}, want: []string{mutating, validating}},
		"asked for":          {serves: []string{"validatingadmissionpolicies"}, enabled: []string{mutating}},
		"off already":        {serves: []string{"validatingadmissionpolicies"}, disabled: []string{mutating}, want: []string{mutating}},
		"another one is off": {serves: []string{"validatingadmissionpolicies"}, disabled: []string{"ResourceQuota"}, want: []string{"ResourceQuota", mutating}},
		"no answer":          {},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := &fakediscovery.FakeDiscovery{Fake: &kubetesting.Fake{}}
			if test.serves != nil {
				list := &metav1.APIResourceList{GroupVersion: "admissionregistration.k8s.io/v1"}
				for _, resource := range test.serves {
					list.APIResources = append(list.APIResources, metav1.APIResource{Name: resource})
				}
				cluster.Resources = append(cluster.Resources, list)
			}
			options := genericoptions.NewAdmissionOptions()
			options.EnablePlugins, options.DisablePlugins = test.enabled, slices.Clone(test.disabled)
			got := servedPolicies(cluster, options)
			if !slices.Equal(got.DisablePlugins, test.want) {
				t.Errorf("off are %v, not %v", got.DisablePlugins, test.want)
			}
			if !slices.Equal(options.DisablePlugins, test.disabled) {
				t.Errorf("the flags say %v now", options.DisablePlugins)
			}
		})
	}
}
