// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/discovery"
	"k8s.io/klog/v2"
)

// admissionVersion is where the policies are that admission plugins of the generic server follow.
const admissionVersion = "admissionregistration.k8s.io/v1"

const (
	// policiesPause and policiesTimeout are for the question at the start which policies the cluster has.
	policiesPause   = time.Second
	policiesTimeout = 30 * time.Second
	// policiesInterval is about how often it is asked again while there is one that it lacked. The most is twice as long, so that
	// replicas do not all end in one moment.
	policiesInterval = 2 * time.Minute
)

// policy is an admission plugin, what it follows, and the version of Kubernetes that has it.
type policy struct{ plugin, resource, since string }

var policies = []policy{
	{mutating.PluginName, "mutatingadmissionpolicies", "1.36"},
	{validating.PluginName, "validatingadmissionpolicies", "1.30"},
}

// servedPolicies returns options without the plugins that follow what the cluster does not serve, and which those are: such a plugin
// waits for it, the server never gets ready, and there can be no policy that it would miss. A plugin that flags name stays as they
// have it. The error is that of a cluster that has not answered for half a minute: a guess would be wrong one way or the other.
func servedPolicies(ctx context.Context, cluster discovery.DiscoveryInterface, options *genericoptions.AdmissionOptions) (served *genericoptions.AdmissionOptions, off []policy, err error) {
	log := klog.FromContext(ctx)
	open := slices.DeleteFunc(slices.Clone(policies), func(p policy) bool {
		return slices.Contains(options.EnablePlugins, p.plugin) || slices.Contains(options.DisablePlugins, p.plugin)
	})
	if len(open) == 0 {
		return options, nil, nil
	}
	var refusal error
	err = wait.PollUntilContextTimeout(ctx, policiesPause, policiesTimeout, true, func(context.Context) (bool, error) {
		if off, refusal = lacking(cluster, open); refusal != nil {
			log.Info("Cannot find out yet which admission policies the cluster has", "err", refusal)
		}
		return refusal == nil, nil
	})
	if refusal != nil {
		err = refusal
	}
	if err != nil {
		return nil, nil, fmt.Errorf("find out which admission policies the cluster has: %w", err)
	}
	less := *options
	less.DisablePlugins = slices.Clone(options.DisablePlugins)
	for _, p := range off {
		log.Info("The cluster is too old for an admission plugin: it is off until the cluster has what it follows", "plugin", p.plugin, "lacks", p.resource, "since", p.since)
		less.DisablePlugins = append(less.DisablePlugins, p.plugin)
	}
	return &less, off, nil
}

// lacking returns those of some policies that the cluster does not serve.
func lacking(cluster discovery.DiscoveryInterface, some []policy) ([]policy, error) {
	list, err := cluster.ServerResourcesForGroupVersion(admissionVersion)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(some), func(p policy) bool {
		return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == p.resource })
	}), nil
}

// awaitPolicies returns an error once the cluster serves what one of the plugins that are off follows, as after an upgrade: from then on
// there can be policies that this process would not obey. It cannot take a plugin in while it runs, but it can start anew. It returns nil when ctx ends.
func awaitPolicies(ctx context.Context, cluster discovery.DiscoveryInterface, off []policy) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait.Jitter(policiesInterval, 1)):
		}
		still, err := lacking(cluster, off)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot ask for admission policies", "err", err)
			continue
		}
		for _, p := range off {
			if !slices.Contains(still, p) {
				return fmt.Errorf("the cluster has %s now: this process ends, so that the next one starts with the admission plugin %s", p.resource, p.plugin)
			}
		}
	}
}
