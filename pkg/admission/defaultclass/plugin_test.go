// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package defaultclass

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/warning"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/generated/clientset/versioned/fake"
	informers "rukpak.io/apiserver/pkg/generated/informers/externalversions"
)

// newPlugin returns the plugin with informers that have seen some classes.
func newPlugin(t *testing.T, classes ...runtime.Object) *plugin {
	t.Helper()
	plugins := admission.NewPlugins()
	Register(plugins)
	if _, err := plugins.InitPlugin(PluginName, nil, admission.PluginInitializers{}); err == nil {
		t.Error("a plugin without informers is valid")
	}
	p := &plugin{Handler: admission.NewHandler(admission.Create)}
	factory := informers.NewSharedInformerFactory(fake.NewClientset(classes...), 0)
	p.SetClassInformers(factory)
	if err := p.ValidateInitialization(); err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	return p
}

func class(name string, isDefault string) *v1alpha1.ProvisionerClass {
	return &v1alpha1.ProvisionerClass{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1alpha1.AnnotationIsDefaultClass: isDefault}}}
}

func TestTheDefaultClassIsFilledIn(t *testing.T) {
	both := []runtime.Object{class("plain", "true"), class("raw", "")}
	for name, test := range map[string]struct {
		classes     []runtime.Object
		named       string
		subresource string
		want        string
	}{
		"none is named":           {classes: both, want: "plain"},
		"one is named":            {classes: both, named: "raw", want: "raw"},
		"one is named that isn't": {classes: both, named: "typo", want: "typo"},
		"none is the default":     {classes: []runtime.Object{class("raw", "false")}},
		"there is none":           {},
		"a subresource":           {classes: both, subresource: "status"},
	} {
		t.Run(name, func(t *testing.T) {
			b := &rukpak.Bundle{ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: "team"}, Spec: rukpak.BundleSpec{ProvisionerClassName: test.named}}
			a := admission.NewAttributesRecord(b, nil, rukpak.SchemeGroupVersion.WithKind("Bundle"), "team", "app",
				v1alpha1.SchemeGroupVersion.WithResource("bundles"), test.subresource, admission.Create, &metav1.CreateOptions{}, false, &user.DefaultInfo{})
			if err := newPlugin(t, test.classes...).Admit(t.Context(), a, nil); err != nil {
				t.Fatal(err)
			}
			if got := b.Spec.ProvisionerClassName; got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestOtherObjectsAreLeftAlone(t *testing.T) {
	p := newPlugin(t, class("plain", "true"))
	c := &rukpak.ProvisionerClass{}
	a := admission.NewAttributesRecord(c, nil, rukpak.SchemeGroupVersion.WithKind("ProvisionerClass"), "", "x",
		v1alpha1.SchemeGroupVersion.WithResource("provisionerclasses"), "", admission.Create, &metav1.CreateOptions{}, false, &user.DefaultInfo{})
	if err := p.Admit(t.Context(), a, nil); err != nil {
		t.Error(err)
	}
}

// recorder keeps warnings.
type recorder []string

func (r *recorder) AddWarning(_, text string) { *r = append(*r, text) }

func TestAClassThatIsNotThereIsWarnedOf(t *testing.T) {
	p := newPlugin(t, class("plain", "true"))
	for name, want := range map[string]int{"plain": 0, "plian": 1, "": 0} {
		var warnings recorder
		ctx := warning.WithWarningRecorder(t.Context(), &warnings)
		b := &rukpak.Bundle{ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: "team"}, Spec: rukpak.BundleSpec{ProvisionerClassName: name}}
		a := admission.NewAttributesRecord(b, nil, rukpak.SchemeGroupVersion.WithKind("Bundle"), "team", "app",
			rukpak.SchemeGroupVersion.WithResource("bundles"), "", admission.Create, &metav1.CreateOptions{}, false, &user.DefaultInfo{Name: "jane"})
		if err := p.Admit(ctx, a, nil); err != nil {
			t.Error(err)
		}
		if len(warnings) != want || want > 0 && !strings.Contains(warnings[0], name) {
			t.Errorf("class %q: warnings %q", name, warnings)
		}
	}
}
