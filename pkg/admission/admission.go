// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package admission wires the server's own admission plugins.
package admission

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"

	"rukpak.io/apiserver/pkg/admission/defaultclass"
	"rukpak.io/apiserver/pkg/admission/requester"
	informers "rukpak.io/apiserver/pkg/generated/informers/externalversions"
)

// Register makes the plugins known, those of this server and that for resource quota.
func Register(plugins *admission.Plugins) {
	defaultclass.Register(plugins)
	requester.Register(plugins)
	resourcequota.Register(plugins)
}

// Order is the plugins that are on by default, beside those that any API server has. The plugin of
// the default class changes objects, so it comes before the generic ones; quota is charged last.
func Order(generic []string) []string {
	order := append([]string{defaultclass.PluginName}, generic...)
	return append(order, requester.PluginName, resourcequota.PluginName)
}

// WantsClasses is a plugin that reads classes.
type WantsClasses interface {
	SetClassInformers(informers.SharedInformerFactory)
}

// Initializer gives the plugins what the generic initializers do not know.
type Initializer struct {
	Informers informers.SharedInformerFactory
}

var _ admission.PluginInitializer = Initializer{}

// Initialize gives plugin what it wants.
func (i Initializer) Initialize(plugin admission.Interface) {
	if p, ok := plugin.(WantsClasses); ok {
		p.SetClassInformers(i.Informers)
	}
	if p, ok := plugin.(initializer.WantsQuotaConfiguration); ok {
		// Objects are counted by name of the resource, count/bundles.rukpak.io; what has no
		// evaluator of its own the plugin counts so by itself.
		p.SetQuotaConfiguration(quota.Configuration(generic.NewConfiguration(nil, map[schema.GroupResource]struct{}{})))
	}
}
