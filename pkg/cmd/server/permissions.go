// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/aggregation"
	"rukpak.io/apiserver/pkg/leader"
)

// permission is something that the server has to be allowed to do in its cluster.
type permission struct {
	group, resource, subresource string
	namespace, name              string
	verbs                        []string
	why                          string
}

func (p permission) String() string {
	resource := p.resource
	if p.subresource != "" {
		resource += "/" + p.subresource
	}
	if p.group != "" {
		resource += "." + p.group
	}
	if p.name != "" {
		resource += " \"" + p.name + "\""
	}
	where := "in the whole cluster"
	if p.namespace != "" {
		where = "in namespace \"" + p.namespace + "\""
	}
	return fmt.Sprintf("%s %s %s (%s)", strings.Join(p.verbs, ", "), resource, where, p.why)
}

// permissions lists what the server needs. publishes means that the caBundle of the APIService is its business.
func (o *Options) permissions(publishes bool) []permission {
	watch := []string{"list", "watch"}
	const admission = "admission"
	list := []permission{
		{group: "authentication.k8s.io", resource: "tokenreviews", verbs: []string{"create"}, why: "who a caller is"},
		{group: "authorization.k8s.io", resource: "subjectaccessreviews", verbs: []string{"create"}, why: "what a caller may do"},
		{resource: "configmaps", namespace: metav1.NamespaceSystem, name: "extension-apiserver-authentication", verbs: []string{"get", "list", "watch"}, why: "which authorities to trust"},
		{resource: "namespaces", verbs: []string{"get", "list", "watch"}, why: admission},
		{group: "admissionregistration.k8s.io", resource: "mutatingwebhookconfigurations", verbs: watch, why: admission},
		{group: "admissionregistration.k8s.io", resource: "validatingwebhookconfigurations", verbs: watch, why: admission},
		{group: "admissionregistration.k8s.io", resource: "validatingadmissionpolicies", verbs: watch, why: admission},
		{group: "admissionregistration.k8s.io", resource: "validatingadmissionpolicybindings", verbs: watch, why: admission},
		{group: "admissionregistration.k8s.io", resource: "mutatingadmissionpolicies", verbs: watch, why: admission},
		{group: "admissionregistration.k8s.io", resource: "mutatingadmissionpolicybindings", verbs: watch, why: admission},
		{resource: "resourcequotas", verbs: watch, why: "quota"},
		{resource: "resourcequotas", subresource: "status", verbs: []string{"update"}, why: "quota"},
		{resource: "pods", verbs: []string{"create", "get", "list", "watch", "delete"}, why: "unpack pods"},
		{resource: "serviceaccounts", verbs: []string{"get"}, why: "pull secrets of unpack pods"},
		{resource: "events", verbs: []string{"list"}, why: "why a pod does not start"},
		{group: "events.k8s.io", resource: "events", verbs: []string{"create", "patch"}, why: "events"},
		{group: "coordination.k8s.io", resource: "leases", namespace: o.Namespace, name: leader.LeaseName, verbs: []string{"get", "update"}, why: "leader election"},
		{group: "coordination.k8s.io", resource: "leases", namespace: o.Namespace, verbs: []string{"create"}, why: "leader election"},
		{resource: "configmaps", namespace: o.Namespace, name: instanceObject, verbs: []string{"get", "patch"}, why: "the instance that the cluster belongs to"},
		{resource: "configmaps", namespace: o.Namespace, verbs: []string{"create"}, why: "the instance that the cluster belongs to"},
		{resource: "services", namespace: o.Namespace, name: o.ServiceName, verbs: []string{"get"}, why: "where unpack pods send content"},
		{resource: "secrets", namespace: o.Namespace, name: identitySecret, verbs: []string{"get", "update"}, why: "the server's own authority"},
		{resource: "secrets", namespace: o.Namespace, verbs: []string{"create"}, why: "the server's own authority"},
		{group: aggregation.CRDs.Group, resource: aggregation.CRDs.Resource, verbs: []string{"list"}, why: "who else claims the API group"},
	}
	apiService := permission{group: aggregation.APIServices.Group, resource: aggregation.APIServices.Resource, name: aggregation.Name, verbs: []string{"get"}, why: "the APIService's caBundle"}
	if publishes {
		apiService.verbs = append(apiService.verbs, "patch")
	}
	list = append(list, apiService)
	if o.Recommended.Features.EnablePriorityAndFairness {
		list = append(list,
			permission{group: "flowcontrol.apiserver.k8s.io", resource: "flowschemas", verbs: watch, why: "priority and fairness"},
			permission{group: "flowcontrol.apiserver.k8s.io", resource: "prioritylevelconfigurations", verbs: watch, why: "priority and fairness"})
	}
	return list
}

// permissionInterval is how often missing permissions are asked for again.
const permissionInterval = time.Minute

// checkPermissions names each permission that is missing, in the log, until none is.
func checkPermissions(ctx context.Context, client kubernetes.Interface, wanted []permission) {
	log := klog.FromContext(ctx)
	var before []string
	for {
		missing, err := missingPermissions(ctx, client, wanted)
		switch {
		case err != nil:
			log.Error(err, "Cannot check the server's own permissions")
		case len(missing) == 0:
			log.Info("The server has the permissions that it needs")
			return
		case !slices.Equal(missing, before):
			for _, m := range missing {
				log.Error(nil, "The server lacks a permission: its ClusterRole or Role in the manifests is not what this version needs", "permission", m)
			}
			before = missing
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(permissionInterval):
		}
	}
}

func missingPermissions(ctx context.Context, client kubernetes.Interface, wanted []permission) ([]string, error) {
	var missing []string
	for _, p := range wanted {
		var denied []string
		for _, verb := range p.verbs {
			review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
					Group: p.group, Resource: p.resource, Subresource: p.subresource, Namespace: p.namespace, Name: p.name, Verb: verb,
				}},
			}, metav1.CreateOptions{})
			if err != nil {
				return nil, err
			}
			if !review.Status.Allowed {
				denied = append(denied, verb)
			}
		}
		if len(denied) > 0 {
			p.verbs = denied
			missing = append(missing, p.String())
		}
	}
	return missing, nil
}
