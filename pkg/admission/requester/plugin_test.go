// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package requester

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/generated/clientset/versioned/fake"
	informers "rukpak.io/apiserver/pkg/generated/informers/externalversions"
)

// grants are what the requester may do: "verb resource name", all in the namespace team.
type grants struct {
	t       *testing.T
	allowed []string
	err     error
	asked   []string
}

func (g *grants) authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser().GetName() != "jane" || a.GetNamespace() != "team" || !a.IsResourceRequest() || a.GetAPIGroup() != "" || a.GetAPIVersion() != "v1" || a.GetSubresource() != "" {
		g.t.Errorf("asked about %+v", a)
	}
	question := strings.TrimSpace(a.GetVerb() + " " + a.GetResource() + " " + a.GetName())
	g.asked = append(g.asked, question)
	if g.err != nil {
		return authorizer.DecisionNoOpinion, "", g.err
	}
	if slices.Contains(g.allowed, question) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// newPlugin returns the plugin with informers that have seen one class, plain, which allows some pull policies.
func newPlugin(t *testing.T, g *grants, allowed ...corev1.PullPolicy) *plugin {
	t.Helper()
	plugins := admission.NewPlugins()
	Register(plugins)
	if _, err := plugins.InitPlugin(PluginName, nil, admission.PluginInitializers{}); err == nil {
		t.Error("a plugin without an authorizer is valid")
	}
	p := &plugin{Handler: admission.NewHandler(admission.Create, admission.Update)}
	class := &v1alpha1.ProvisionerClass{ObjectMeta: metav1.ObjectMeta{Name: "plain"}, Unpack: &v1alpha1.UnpackPolicy{AllowedPullPolicies: allowed}}
	bare := &v1alpha1.ProvisionerClass{ObjectMeta: metav1.ObjectMeta{Name: "bare"}}
	factory := informers.NewSharedInformerFactory(fake.NewClientset([]runtime.Object{class, bare}...), 0)
	p.SetClassInformers(factory)
	if p.ValidateInitialization() == nil {
		t.Error("a plugin without an authorizer is valid")
	}
	p.SetAuthorizer(authorizer.AuthorizerFunc(g.authorize))
	if err := p.ValidateInitialization(); err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	return p
}

func image(secrets ...string) *rukpak.Bundle {
	b := &rukpak.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: "team"},
		Spec: rukpak.BundleSpec{
			ProvisionerClassName: "plain", ServiceAccountName: "puller",
			Source: rukpak.BundleSource{Type: rukpak.SourceTypeImage, Image: &rukpak.ImageSource{Reference: "app", PullPolicy: corev1.PullAlways, Path: "/"}},
		},
	}
	for _, s := range secrets {
		b.Spec.ImagePullSecrets = append(b.Spec.ImagePullSecrets, rukpak.LocalObjectReference{Name: s})
	}
	return b
}

func upload() *rukpak.Bundle {
	b := image()
	b.Spec.Source = rukpak.BundleSource{Type: rukpak.SourceTypeUpload, Upload: &rukpak.UploadSource{}}
	return b
}

func attributes(b, old *rukpak.Bundle, subresource string) admission.Attributes {
	var before runtime.Object
	operation := admission.Create
	if old != nil {
		before, operation = old, admission.Update
	}
	return admission.NewAttributesRecord(b, before, rukpak.SchemeGroupVersion.WithKind("Bundle"), "team", "app",
		v1alpha1.SchemeGroupVersion.WithResource("bundles"), subresource, operation, nil, false, &user.DefaultInfo{Name: "jane"})
}

func TestWhoMayCreateWhat(t *testing.T) {
	with := func(b *rukpak.Bundle, change func(*rukpak.Bundle)) *rukpak.Bundle { change(b); return b }
	for name, test := range map[string]struct {
		allowed     []string
		err         error
		bundle, old *rukpak.Bundle
		subresource string
		refused     string // the field that the error names
		unasked     bool
	}{
		"nothing":                            {bundle: image(), refused: "spec.serviceAccountName"},
		"the service account":                {allowed: []string{"use serviceaccounts puller"}, bundle: image()},
		"the account that is meant by none":  {allowed: []string{"use serviceaccounts default"}, bundle: with(image(), func(b *rukpak.Bundle) { b.Spec.ServiceAccountName = "" })},
		"another than that meant by none":    {allowed: []string{"use serviceaccounts puller"}, bundle: with(image(), func(b *rukpak.Bundle) { b.Spec.ServiceAccountName = "" }), refused: "spec.serviceAccountName"},
		"another service account":            {allowed: []string{"use serviceaccounts other"}, bundle: image(), refused: "spec.serviceAccountName"},
		"to read the service account":        {allowed: []string{"get serviceaccounts puller"}, bundle: image(), refused: "spec.serviceAccountName"},
		"pods":                               {allowed: []string{"create pods"}, bundle: image("a", "b")},
		"the account and one of two secrets": {allowed: []string{"use serviceaccounts puller", "get secrets a"}, bundle: image("a", "b"), refused: "spec.imagePullSecrets[1]"},
		"the account and both secrets":       {allowed: []string{"use serviceaccounts puller", "get secrets a", "get secrets b"}, bundle: image("a", "b")},
		"the secrets and not the account":    {allowed: []string{"get secrets a"}, bundle: image("a"), refused: "spec.serviceAccountName"},
		"nobody knows":                       {err: errors.New("no answer"), bundle: image(), refused: "spec.serviceAccountName"},
		"an upload":                          {bundle: upload(), unasked: true},
		"an update of the labels":            {bundle: with(image(), func(b *rukpak.Bundle) { b.Labels = map[string]string{"a": "b"} }), old: image(), unasked: true},
		"an update that suspends":            {bundle: with(image(), func(b *rukpak.Bundle) { b.Spec.Suspend = true }), old: image(), unasked: true},
		"an update of the account":           {bundle: image(), old: with(image(), func(b *rukpak.Bundle) { b.Spec.ServiceAccountName = "mine" }), refused: "spec.serviceAccountName"},
		"an update of the image":             {bundle: image(), old: with(image(), func(b *rukpak.Bundle) { b.Spec.Source.Image.Reference = "x" }), refused: "spec.serviceAccountName"},
		"an update of the path":              {bundle: image(), old: with(image(), func(b *rukpak.Bundle) { b.Spec.Source.Image.Path = "/x" }), refused: "spec.serviceAccountName"},
		"an update that adds a secret":       {allowed: []string{"use serviceaccounts puller"}, bundle: image("a"), old: image(), refused: "spec.imagePullSecrets[0]"},
		"an update of the class":             {bundle: image(), old: with(image(), func(b *rukpak.Bundle) { b.Spec.ProvisionerClassName = "" }), refused: "spec.serviceAccountName"},
		"an update of an upload to an image": {bundle: image(), old: upload(), refused: "spec.serviceAccountName"},
		"an update of the status":            {bundle: image(), old: upload(), subresource: "status", unasked: true},
		"an image whose union is not whole":  {bundle: with(image(), func(b *rukpak.Bundle) { b.Spec.Source.Image = nil }), refused: "spec.serviceAccountName"},
		"pods, for an update of the account": {allowed: []string{"create pods"}, bundle: image(), old: with(image(), func(b *rukpak.Bundle) { b.Spec.ServiceAccountName = "mine" })},
	} {
		t.Run(name, func(t *testing.T) {
			g := &grants{t: t, allowed: test.allowed, err: test.err}
			err := newPlugin(t, g).Validate(t.Context(), attributes(test.bundle, test.old, test.subresource), nil)
			if test.refused == "" && err != nil {
				t.Errorf("refused: %v", err)
			}
			if test.refused != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), test.refused+":") || !strings.Contains(err.Error(), "jane")) {
				t.Errorf("got %v, want a refusal that names %s", err, test.refused)
			}
			if test.err != nil && !strings.Contains(err.Error(), test.err.Error()) {
				t.Errorf("the cause is not said: %v", err)
			}
			if (len(g.asked) == 0) != test.unasked {
				t.Errorf("asked %q", g.asked)
			}
		})
	}
}

func TestPullPolicies(t *testing.T) {
	for name, test := range map[string]struct {
		class   string
		allowed []corev1.PullPolicy
		policy  corev1.PullPolicy
		refused bool
	}{
		"always":                        {class: "plain", policy: corev1.PullAlways},
		"always, where it is not named": {class: "plain", allowed: []corev1.PullPolicy{corev1.PullNever}, policy: corev1.PullAlways},
		"never":                         {class: "plain", allowed: []corev1.PullPolicy{corev1.PullAlways}, policy: corev1.PullNever, refused: true},
		"never, allowed":                {class: "plain", allowed: []corev1.PullPolicy{corev1.PullAlways, corev1.PullNever}, policy: corev1.PullNever},
		"if not present":                {class: "plain", allowed: []corev1.PullPolicy{corev1.PullNever}, policy: corev1.PullIfNotPresent, refused: true},
		"a class that allows nothing":   {class: "bare", policy: corev1.PullNever, refused: true},
		"a class that is not there":     {class: "typo", policy: corev1.PullNever, refused: true},
		"no class yet":                  {class: "", policy: corev1.PullNever, refused: true},
		"always of no class yet":        {class: "", policy: corev1.PullAlways},
	} {
		t.Run(name, func(t *testing.T) {
			b := image()
			b.Spec.ProvisionerClassName, b.Spec.Source.Image.PullPolicy = test.class, test.policy
			g := &grants{t: t, allowed: []string{"create pods"}}
			err := newPlugin(t, g, test.allowed...).Validate(t.Context(), attributes(b, nil, ""), nil)
			if (err != nil) != test.refused {
				t.Fatalf("got %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), "spec.source.image.pullPolicy") {
				t.Errorf("the field is not named: %v", err)
			}
		})
	}
}
