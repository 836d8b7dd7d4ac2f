// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/registry/bundle"
)

func TestSecure(t *testing.T) {
	jane := &user.DefaultInfo{Name: "jane"}
	anonymous := &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}
	broken := errors.New("no answer")
	for name, test := range map[string]struct {
		path string
		user user.Info // who the generic authenticator finds, or nil
		err  error
		ok   bool
	}{
		"somebody":                       {path: "/apis/rukpak.io/v1alpha1/bundles", user: jane, ok: true},
		"somebody, for health":           {path: "/readyz", user: jane, ok: true},
		"nobody":                         {path: "/apis/rukpak.io/v1alpha1/bundles", user: anonymous},
		"nobody, for healthz":            {path: "/healthz", user: anonymous, ok: true},
		"nobody, for livez":              {path: "/livez", user: anonymous, ok: true},
		"nobody, for readyz":             {path: "/readyz", user: anonymous, ok: true},
		"nobody, for one check":          {path: "/readyz/etcd", user: anonymous},
		"nobody, for what looks like it": {path: "/livez/../metrics", user: anonymous},
		"nobody, for discovery":          {path: "/apis", user: anonymous},
		"nobody, for metrics":            {path: "/metrics", user: anonymous},
		"nobody, for the version":        {path: "/version", user: anonymous},
		"nobody, for OpenAPI":            {path: "/openapi/v2", user: anonymous},
		"a bad token":                    {path: "/apis"},
		"a bad token, for health":        {path: "/readyz"},
		"no answer about a token":        {path: "/apis", err: broken},
	} {
		t.Run(name, func(t *testing.T) {
			info := &genericapiserver.AuthenticationInfo{Authenticator: authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
				return &authenticator.Response{User: test.user}, test.user != nil, test.err
			})}
			secure(info)
			req := httptest.NewRequest(http.MethodGet, "https://server/", nil)
			req.URL.Path = test.path
			response, ok, err := info.Authenticator.AuthenticateRequest(req)
			if ok != test.ok || !errors.Is(err, test.err) {
				t.Fatalf("got %v, %v", ok, err)
			}
			if ok && response.User.GetName() != test.user.GetName() {
				t.Errorf("it is %q", response.User.GetName())
			}
		})
	}
	info := &genericapiserver.AuthenticationInfo{}
	if secure(info); info.Authenticator != nil {
		t.Error("an authenticator has come from nowhere")
	}
}

func TestMarkDirect(t *testing.T) {
	for name, test := range map[string]struct {
		tls  *tls.ConnectionState
		want bool
	}{
		"without TLS":                     {nil, false},
		"without a certificate":           {&tls.ConnectionState{}, true},
		"with one, as the aggregator has": {&tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			called := false
			handler := markDirect(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
				called = true
				if got := isDirect(req.Context()); got != test.want {
					t.Errorf("got %v, want %v", got, test.want)
				}
			}))
			req := httptest.NewRequest(http.MethodPut, "/", nil)
			req.TLS = test.tls
			if handler.ServeHTTP(httptest.NewRecorder(), req); !called {
				t.Error("the request went nowhere")
			}
		})
	}
}

// oneBundle is a storage that holds one bundle.
type oneBundle struct {
	storage.Interface
	bundle *rukpak.Bundle
	err    error
}

func (o oneBundle) Get(_ context.Context, key string, _ storage.GetOptions, into runtime.Object) error {
	if o.err != nil {
		return o.err
	}
	if key != "/bundles/"+o.bundle.Namespace+"/"+o.bundle.Name {
		return storage.NewKeyNotFoundError(key, 0)
	}
	o.bundle.DeepCopyInto(into.(*rukpak.Bundle))
	return nil
}

func bundles(b *rukpak.Bundle, err error) *bundle.Storage {
	return &bundle.Storage{Bundle: &bundle.REST{Store: &genericregistry.Store{
		NewFunc:                  func() runtime.Object { return &rukpak.Bundle{} },
		DefaultQualifiedResource: rukpak.Resource("bundles"),
		KeyFunc: func(ctx context.Context, name string) (string, error) {
			return genericregistry.NamespaceKeyFunc(ctx, "/bundles", name)
		},
		Storage: genericregistry.DryRunnableStorage{Storage: oneBundle{bundle: b, err: err}},
	}}}
}

func TestAttemptAuthorizer(t *testing.T) {
	pod := func(namespace, name, uid string) user.Info {
		return &user.DefaultInfo{Name: serviceaccount.MakeUsername(namespace, "default"), Extra: map[string][]string{
			serviceaccount.PodNameKey: {name}, serviceaccount.PodUIDKey: {uid},
		}}
	}
	unpack := pod("team", "unpack", "pod-uid")
	for name, test := range map[string]struct {
		change     func(*rukpak.Bundle)
		caller     user.Info // the attempt's pod, if nil
		aggregated bool
		attributes func(*authorizer.AttributesRecord)
		stored     error
		want       authorizer.Decision
		err        bool
	}{
		"the pod of the attempt":        {want: authorizer.DecisionAllow},
		"the pod before it is recorded": {change: func(b *rukpak.Bundle) { b.Status.Unpack.PodUID = "" }, want: authorizer.DecisionAllow},
		"through the aggregator":        {aggregated: true},
		"another pod":                   {caller: pod("team", "other", "other-uid")},
		"a pod that took the name":      {caller: pod("team", "unpack", "other-uid")},
		"a pod of another namespace":    {caller: pod("evil", "unpack", "pod-uid")},
		"a service account":             {caller: &user.DefaultInfo{Name: serviceaccount.MakeUsername("team", "default")}},
		"a user with a pod's extras":    {caller: &user.DefaultInfo{Name: "jane", Extra: unpack.GetExtra()}},
		"no attempt":                    {change: func(b *rukpak.Bundle) { b.Status.Unpack = nil }},
		"an attempt of the server":      {change: func(b *rukpak.Bundle) { b.Status.Unpack.PodName, b.Status.Unpack.PodUID = "", "" }},
		"an upload":                     {change: func(b *rukpak.Bundle) { b.Spec.Source.Type = rukpak.SourceTypeUpload }},
		"another bundle":                {attributes: func(a *authorizer.AttributesRecord) { a.Name = "other" }},
		"a bundle of another namespace": {attributes: func(a *authorizer.AttributesRecord) { a.Namespace = "other" }},
		"a read":                        {attributes: func(a *authorizer.AttributesRecord) { a.Verb = "get" }},
		"a watch":                       {attributes: func(a *authorizer.AttributesRecord) { a.Verb = "watch" }},
		"a patch":                       {attributes: func(a *authorizer.AttributesRecord) { a.Verb = "patch" }},
		"the bundle itself":             {attributes: func(a *authorizer.AttributesRecord) { a.Subresource = "" }},
		"its status":                    {attributes: func(a *authorizer.AttributesRecord) { a.Subresource = "status" }},
		"a class":                       {attributes: func(a *authorizer.AttributesRecord) { a.Resource = "provisionerclasses" }},
		"another group":                 {attributes: func(a *authorizer.AttributesRecord) { a.APIGroup = "core.rukpak.io" }},
		"no resource":                   {attributes: func(a *authorizer.AttributesRecord) { a.ResourceRequest = false }},
		"etcd is away":                  {stored: errors.New("no leader"), err: true},
		"etcd is away, another verb":    {stored: errors.New("no leader"), attributes: func(a *authorizer.AttributesRecord) { a.Verb = "get" }},
		"etcd is away, no pod":          {stored: errors.New("no leader"), caller: &user.DefaultInfo{Name: "jane"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := &rukpak.Bundle{
				ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: "team"},
				Spec:       rukpak.BundleSpec{Source: rukpak.BundleSource{Type: rukpak.SourceTypeImage, Image: &rukpak.ImageSource{}}},
				Status:     rukpak.BundleStatus{Unpack: &rukpak.UnpackStatus{PodName: "unpack", PodUID: "pod-uid"}},
			}
			if test.change != nil {
				test.change(b)
			}
			record := authorizer.AttributesRecord{
				User: test.caller, Verb: "update", APIGroup: "rukpak.io", APIVersion: "v1alpha1", Resource: "bundles", Subresource: "content",
				Namespace: "team", Name: "app", ResourceRequest: true,
			}
			if test.caller == nil {
				record.User = unpack
			}
			if test.attributes != nil {
				test.attributes(&record)
			}
			ctx := context.WithValue(t.Context(), directKey{}, !test.aggregated)
			a := &attemptAuthorizer{}
			if decision, _, err := a.authorize(ctx, record); decision != authorizer.DecisionNoOpinion || err != nil {
				t.Errorf("without a storage: %v, %v", decision, err)
			}
			a.bundles.Store(bundles(b, test.stored))
			want := test.want
			if want != authorizer.DecisionAllow {
				want = authorizer.DecisionNoOpinion
			}
			// The namespace of the request is not that of the context here.
			decision, _, err := a.authorize(genericapirequest.WithNamespace(ctx, "unrelated"), record)
			if decision != want || (err != nil) != test.err {
				t.Errorf("got %v, %v; want %v", decision, err, want)
			}
		})
	}
}

// What the namespace controller asks for with protobuf first, it gets in JSON.
func TestMediaTypes(t *testing.T) {
	var got []string
	for _, info := range Serializer.SupportedMediaTypes() {
		got = append(got, info.MediaType)
	}
	if len(got) != 2 || got[0] != runtime.ContentTypeJSON || got[1] != runtime.ContentTypeYAML {
		t.Errorf("got %q", got)
	}
}
