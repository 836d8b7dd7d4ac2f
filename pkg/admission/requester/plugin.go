// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package requester is the admission plugin that keeps a Bundle from giving anybody an identity, a
// secret or an image that they could not use anyway.
package requester

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	informers "rukpak.io/apiserver/pkg/generated/informers/externalversions"
	listers "rukpak.io/apiserver/pkg/generated/listers/rukpak/v1alpha1"
)

// PluginName is the name of the plugin.
const PluginName = "BundleRequester"

// Register makes the plugin known.
func Register(plugins *admission.Plugins) {
	plugins.Register(PluginName, func(io.Reader) (admission.Interface, error) {
		return &plugin{Handler: admission.NewHandler(admission.Create, admission.Update)}, nil
	})
}

type plugin struct {
	*admission.Handler
	authorizer authorizer.Authorizer
	classes    listers.ProvisionerClassLister
}

var (
	_ admission.ValidationInterface     = &plugin{}
	_ admission.InitializationValidator = &plugin{}
	_ initializer.WantsAuthorizer       = &plugin{}
)

// SetAuthorizer takes the server's authorizer.
func (p *plugin) SetAuthorizer(a authorizer.Authorizer) { p.authorizer = a }

// SetClassInformers takes the informers.
func (p *plugin) SetClassInformers(f informers.SharedInformerFactory) {
	classes := f.Rukpak().V1alpha1().ProvisionerClasses()
	p.classes = classes.Lister()
	p.SetReadyFunc(classes.Informer().HasSynced)
}

// ValidateInitialization reports what is missing.
func (p *plugin) ValidateInitialization() error {
	if p.authorizer == nil || p.classes == nil {
		return fmt.Errorf("%s has no authorizer or no lister of classes", PluginName)
	}
	return nil
}

// Validate refuses a bundle whose service account or pull secrets the requester may not use, or whose
// pull policy the class does not allow. An update is asked about only where it changes what is run.
func (p *plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != rukpak.Resource("bundles") || a.GetSubresource() != "" {
		return nil
	}
	bundle, ok := a.GetObject().(*rukpak.Bundle)
	if !ok || bundle.Spec.Source.Type != rukpak.SourceTypeImage {
		return nil
	}
	if old, ok := a.GetOldObject().(*rukpak.Bundle); ok && sameRun(&bundle.Spec, &old.Spec) {
		return nil
	}
	if err := p.checkPullPolicy(a, bundle); err != nil {
		return err
	}
	return p.checkIdentity(ctx, a, bundle)
}

// sameRun reports whether two specs pull the same image with the same identity.
func sameRun(a, b *rukpak.BundleSpec) bool {
	return a.ProvisionerClassName == b.ProvisionerClassName && a.ServiceAccountName == b.ServiceAccountName &&
		apiequality.Semantic.DeepEqual(a.Source, b.Source) && apiequality.Semantic.DeepEqual(a.ImagePullSecrets, b.ImagePullSecrets)
}

// checkPullPolicy refuses a pull policy that takes what is on the node without asking for credentials.
func (p *plugin) checkPullPolicy(a admission.Attributes, bundle *rukpak.Bundle) error {
	image := bundle.Spec.Source.Image
	if image == nil || image.PullPolicy == corev1.PullAlways {
		return nil
	}
	if !p.WaitForReady() {
		return admission.NewForbidden(a, fmt.Errorf("the server has not read the classes yet: try again"))
	}
	var allowed []corev1.PullPolicy
	class, err := p.classes.Get(bundle.Spec.ProvisionerClassName)
	if err != nil && !apierrors.IsNotFound(err) {
		return admission.NewForbidden(a, err)
	}
	if err == nil && class.Unpack != nil {
		allowed = class.Unpack.AllowedPullPolicies
	}
	if slices.Contains(allowed, image.PullPolicy) {
		return nil
	}
	return admission.NewForbidden(a, fmt.Errorf("spec.source.image.pullPolicy: class %q does not allow %s", bundle.Spec.ProvisionerClassName, image.PullPolicy))
}

// checkIdentity asks for the requester: "use" on the service account, "get" on each pull secret, or
// else "create" on pods, with which both could be used anyway.
func (p *plugin) checkIdentity(ctx context.Context, a admission.Attributes, bundle *rukpak.Bundle) error {
	type need struct{ verb, resource, name, field string }
	account := cmp.Or(bundle.Spec.ServiceAccountName, v1alpha1.DefaultServiceAccountName)
	needs := []need{{"use", "serviceaccounts", account, "spec.serviceAccountName"}}
	for i, s := range bundle.Spec.ImagePullSecrets {
		needs = append(needs, need{"get", "secrets", s.Name, fmt.Sprintf("spec.imagePullSecrets[%d]", i)})
	}
	ask := authorizer.AttributesRecord{
		User: a.GetUserInfo(), Namespace: a.GetNamespace(), APIVersion: "v1", ResourceRequest: true, Verb: "create", Resource: "pods",
	}
	if allowed, _, err := p.authorizer.Authorize(ctx, ask); err == nil && allowed == authorizer.DecisionAllow {
		return nil
	}
	for _, n := range needs {
		ask.Verb, ask.Resource, ask.Name = n.verb, n.resource, n.name
		allowed, _, err := p.authorizer.Authorize(ctx, ask)
		if allowed == authorizer.DecisionAllow {
			continue
		}
		reason := fmt.Errorf("%s: user %q may neither %s the resource %s %q nor create pods in namespace %q",
			n.field, a.GetUserInfo().GetName(), n.verb, n.resource, n.name, a.GetNamespace())
		if err != nil {
			reason = fmt.Errorf("%w: %w", reason, err)
		}
		return admission.NewForbidden(a, reason)
	}
	return nil
}
