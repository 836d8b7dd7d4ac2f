// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	fakediscovery "k8s.io/client-go/discovery/fake"
	kubetesting "k8s.io/client-go/testing"
)

const validatingPolicies, mutatingPolicies = "validatingadmissionpolicies", "mutatingadmissionpolicies"

// clusterWith is the discovery of a cluster that serves resources of admissionregistration.k8s.io/v1. The first questions, as many as
// silent says, are not answered.
func clusterWith(silent int, resources ...string) *fakediscovery.FakeDiscovery {
	list := &metav1.APIResourceList{GroupVersion: "admissionregistration.k8s.io/v1"}
	for _, resource := range resources {
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: resource})
	}
	cluster := &fakediscovery.FakeDiscovery{Fake: &kubetesting.Fake{Resources: []*metav1.APIResourceList{list}}}
	cluster.AddReactor("get", "resource", func(kubetesting.Action) (bool, runtime.Object, error) {
		silent--
		return silent >= 0, nil, errors.New("no answer")
	})
	return cluster
}

// A plugin that waits for what an older cluster does not have would keep the server from ever being ready. Who cannot know what
// the cluster has starts again.
func TestServedPolicies(t *testing.T) {
	const validating, mutating = "ValidatingAdmissionPolicy", "MutatingAdmissionPolicy"
	for name, test := range map[string]struct {
		serves            []string
		silent            int
		enabled, disabled []string
		want              []string // that are off
		off               []string // of them, what the cluster lacks
		fails             bool
	}{
		"1.36":                 {serves: []string{validatingPolicies, mutatingPolicies}},
		"1.35":                 {serves: []string{validatingPolicies}, want: []string{mutating}, off: []string{mutatingPolicies}},
		"1.29":                 {serves: []string{"validatingwebhookconfigurations"}, want: []string{mutating, validating}, off: []string{mutatingPolicies, validatingPolicies}},
		"asked for":            {serves: []string{validatingPolicies}, enabled: []string{mutating}},
		"off already":          {serves: []string{validatingPolicies}, disabled: []string{mutating}, want: []string{mutating}},
		"another one is off":   {serves: []string{validatingPolicies}, disabled: []string{"ResourceQuota"}, want: []string{"ResourceQuota", mutating}, off: []string{mutatingPolicies}},
		"no answer at first":   {serves: []string{validatingPolicies}, silent: 3, want: []string{mutating}, off: []string{mutatingPolicies}},
		"no answer":            {serves: []string{validatingPolicies}, silent: 1000, fails: true},
		"nothing to ask about": {silent: 1000, enabled: []string{mutating}, disabled: []string{validating}, want: []string{validating}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				options := genericoptions.NewAdmissionOptions()
				options.EnablePlugins, options.DisablePlugins = test.enabled, slices.Clone(test.disabled)
				got, lacks, err := servedPolicies(t.Context(), clusterWith(test.silent, test.serves...), options)
				if !slices.Equal(options.DisablePlugins, test.disabled) {
					t.Errorf("the flags say %v now", options.DisablePlugins)
				}
				if test.fails {
					if err == nil || !strings.Contains(err.Error(), "no answer") {
						t.Errorf("got %v, and options %+v", err, got)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(got.DisablePlugins, test.want) {
					t.Errorf("off are %v, not %v", got.DisablePlugins, test.want)
				}
				var off []string
				for _, p := range lacks {
					off = append(off, p.resource)
				}
				if !slices.Equal(off, test.off) {
					t.Errorf("it lacks %v, not %v", off, test.off)
				}
			})
		})
	}
}

// After an upgrade of the cluster there can be policies of which a plugin that is off knows nothing.
func TestPoliciesThatAppear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := clusterWith(0, validatingPolicies)
		_, off, err := servedPolicies(t.Context(), cluster, genericoptions.NewAdmissionOptions())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- awaitPolicies(ctx, cluster, off) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("nothing has appeared, and it ends: %v", err)
		default:
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("at the end of the server: %v", err)
		}
		upgraded := clusterWith(2, validatingPolicies, mutatingPolicies)
		if err := awaitPolicies(t.Context(), upgraded, off); err == nil || !strings.Contains(err.Error(), mutatingPolicies) {
			t.Errorf("after the upgrade: %v", err)
		}
	})
}
