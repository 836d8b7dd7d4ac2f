// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"slices"
	"testing"

	"k8s.io/apiserver/pkg/admission"
	quota "k8s.io/apiserver/pkg/quota/v1"

	"rukpak.io/apiserver/pkg/admission/defaultclass"
	"rukpak.io/apiserver/pkg/admission/requester"
	informers "rukpak.io/apiserver/pkg/generated/informers/externalversions"
)

// What changes objects comes first, what counts them last.
func TestOrder(t *testing.T) {
	generic := []string{"NamespaceLifecycle", "ValidatingAdmissionWebhook"}
	want := []string{defaultclass.PluginName, "NamespaceLifecycle", "ValidatingAdmissionWebhook", requester.PluginName, "ResourceQuota"}
	if got := Order(generic); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	plugins := admission.NewPlugins()
	Register(plugins)
	for _, name := range []string{defaultclass.PluginName, requester.PluginName, "ResourceQuota"} {
		if !slices.Contains(plugins.Registered(), name) {
			t.Errorf("%s is not known", name)
		}
	}
}

type wants struct {
	*admission.Handler
	informers informers.SharedInformerFactory
	quota     quota.Configuration
}

func (w *wants) SetClassInformers(f informers.SharedInformerFactory) { w.informers = f }
func (w *wants) SetQuotaConfiguration(c quota.Configuration)         { w.quota = c }

func (w *wants) ValidateInitialization() error { return nil }

func TestInitializer(t *testing.T) {
	factory := informers.NewSharedInformerFactory(nil, 0)
	w := &wants{}
	Initializer{Informers: factory}.Initialize(w)
	if w.informers != factory || w.quota == nil {
		t.Errorf("informers %v, quota %v", w.informers, w.quota)
	}
	Initializer{Informers: factory}.Initialize(admission.NewHandler(admission.Create))
}
