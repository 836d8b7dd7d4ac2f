// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/discovery"
	"k8s.io/klog/v2"
)

// admissionVersion is where the policies are that admission plugins of the generic server follow.
const admissionVersion = "admissionregistration.k8s.io/v1"

// policies are those plugins, what they follow, and the version of Kubernetes that has it.
var policies = []struct{ plugin, resource, since string }{
	{mutating.PluginName, "mutatingadmissionpolicies", "1.36"},
	{validating.PluginName, "validatingadmissionpolicies", "1.30"},
}

// servedPolicies returns options without the plugins that follow what the cluster does not serve: such a plugin
// waits for it, the server never gets ready, and there can be no policy that it would miss. If the cluster does not
// answer, or where a flag asks for the plugin, it stays.
func servedPolicies(cluster discovery.DiscoveryInterface, options *genericoptions.AdmissionOptions) *genericoptions.AdmissionOptions {
	log := klog.Background()
	list, err := cluster.ServerResourcesForGroupVersion(admissionVersion)
	if err != nil {
		log.Error(err, "Cannot find out which admission policies the cluster has: taken to have all")
		return options
	}
	served := *options
	served.DisablePlugins = slices.Clone(options.DisablePlugins)
	for _, p := range policies {
		has := slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == p.resource })
		if has || slices.Contains(options.EnablePlugins, p.plugin) || slices.Contains(options.DisablePlugins, p.plugin) {
			continue
		}
		log.Info("The cluster is too old for an admission plugin: it is off until this server is started again", "plugin", p.plugin, "lacks", p.resource, "since", p.since)
		served.DisablePlugins = append(served.DisablePlugins, p.plugin)
	}
	return &served
}
