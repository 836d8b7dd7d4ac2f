// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package defaultclass is the admission plugin that fills in the class of a Bundle that names none.
package defaultclass

import (
	"context"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	informers "rukpak.io/apiserver/pkg/generated/informers/externalversions"
	listers "rukpak.io/apiserver/pkg/generated/listers/rukpak/v1alpha1"
)

// PluginName is the name of the plugin.
const PluginName = "DefaultProvisionerClass"

// Register makes the plugin known.
func Register(plugins *admission.Plugins) {
	plugins.Register(PluginName, func(io.Reader) (admission.Interface, error) {
		return &plugin{Handler: admission.NewHandler(admission.Create)}, nil
	})
}

type plugin struct {
	*admission.Handler
	classes listers.ProvisionerClassLister
}

var (
	_ admission.MutationInterface       = &plugin{}
	_ admission.InitializationValidator = &plugin{}
)

// SetClassInformers takes the informers.
func (p *plugin) SetClassInformers(f informers.SharedInformerFactory) {
	classes := f.Rukpak().V1alpha1().ProvisionerClasses()
	p.classes = classes.Lister()
	p.SetReadyFunc(classes.Informer().HasSynced)
}

// ValidateInitialization reports what is missing.
func (p *plugin) ValidateInitialization() error {
	if p.classes == nil {
		return fmt.Errorf("%s has no lister of classes", PluginName)
	}
	return nil
}

// Admit fills in the class. Where no class is the default the bundle waits for one.
func (p *plugin) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != rukpak.Resource("bundles") || a.GetSubresource() != "" {
		return nil
	}
	bundle, ok := a.GetObject().(*rukpak.Bundle)
	if !ok {
		return nil
	}
	if !p.WaitForReady() {
		return admission.NewForbidden(a, fmt.Errorf("the server has not read the classes yet: try again"))
	}
	if name := bundle.Spec.ProvisionerClassName; name != "" {
		// It may be created later, so it is no error; but a misspelt one cannot be mended.
		if _, err := p.classes.Get(name); apierrors.IsNotFound(err) {
			warning.AddWarning(ctx, "", fmt.Sprintf("spec.provisionerClassName: ProvisionerClass %q does not exist (yet); the name cannot be changed later", name))
		}
		return nil
	}
	classes, err := p.classes.List(labels.Everything())
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	if class := v1alpha1.DefaultClass(classes); class != nil {
		bundle.Spec.ProvisionerClassName = class.Name
	}
	return nil
}
