// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package aggregation

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"rukpak.io/apiserver/pkg/identity"
)

// apiService returns the APIService as it is applied, without a service if that is empty.
func apiService(service, namespace, caBundle string) *unstructured.Unstructured {
	spec := map[string]any{"group": "rukpak.io"}
	if service != "" {
		spec["service"] = map[string]any{"name": service, "namespace": namespace}
	}
	if caBundle != "" {
		spec["caBundle"] = base64.StdEncoding.EncodeToString([]byte(caBundle))
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "spec": spec,
		"metadata": map[string]any{"name": Name, "uid": "uid-of-it", "resourceVersion": "1"},
	}}
}

func insecure(obj *unstructured.Unstructured) *unstructured.Unstructured {
	_ = unstructured.SetNestedField(obj.Object, true, "spec", "insecureSkipTLSVerify")
	return obj
}

func newAPIService(objects ...runtime.Object) (*APIService, *dynamicfake.FakeDynamicClient) {
	client := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(), objects...)
	return New(client, "server", "team"), client
}

func TestAPIService(t *testing.T) {
	for name, test := range map[string]struct {
		object  *unstructured.Unstructured // nil if there is none
		nobody  bool
		absent  bool
		foreign string
		bundle  string
	}{
		"there is none":        {nobody: true, absent: true},
		"without authorities":  {object: apiService("server", "team", "")},
		"with authorities":     {object: apiService("server", "team", "old"), bundle: "old"},
		"of another service":   {object: apiService("theirs", "team", "old"), nobody: true, foreign: `"theirs"`, bundle: "old"},
		"of another namespace": {object: apiService("server", "theirs", "old"), nobody: true, foreign: `"theirs"`, bundle: "old"},
		"that trusts anybody":  {object: insecure(apiService("server", "team", "")), nobody: true},
		"of a custom resource": {object: apiService("", "", ""), nobody: true, foreign: "CustomResourceDefinition"},
	} {
		t.Run(name, func(t *testing.T) {
			a, client := newAPIService()
			if test.object != nil {
				a, client = newAPIService(test.object)
			}
			v, err := a.Read(t.Context())
			if err != nil || v.Absent != test.absent || !strings.Contains(v.Foreign, test.foreign) || (v.Foreign == "") != (test.foreign == "") || string(v.CABundle) != test.bundle {
				t.Errorf("got %+v, %v", v, err)
			}
			published, err := a.Look(t.Context())
			if err != nil || published.Nobody != test.nobody {
				t.Fatalf("got %+v, %v", published, err)
			}
			if test.nobody {
				return
			}
			if err := published.Replace(t.Context(), []byte("new")); err != nil {
				t.Fatal(err)
			}
			if v, err := a.Read(t.Context()); err != nil || string(v.CABundle) != "new" {
				t.Errorf("got %+v, %v", v, err)
			}
			for _, action := range client.Actions() {
				patch, ok := action.(clienttesting.PatchAction)
				if ok && !strings.Contains(string(patch.GetPatch()), `"resourceVersion":"1"`) {
					t.Errorf("the patch is not for one version: %s", patch.GetPatch())
				}
			}
		})
	}
}

func TestAPIServiceThatFails(t *testing.T) {
	a, client := newAPIService(apiService("server", "team", ""))
	published, err := a.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	away := errors.New("no answer")
	for want, answer := range map[error]error{identity.ErrConflict: apierrors.NewConflict(APIServices.GroupResource(), Name, away), away: away} {
		client.PrependReactor("patch", "apiservices", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, answer })
		if err := published.Replace(t.Context(), []byte("new")); !errors.Is(err, want) {
			t.Errorf("got %v", err)
		}
	}
	client.PrependReactor("get", "apiservices", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, away })
	if _, err := a.Look(t.Context()); !errors.Is(err, away) {
		t.Errorf("got %v", err)
	}
	broken := apiService("server", "team", "")
	if err := unstructured.SetNestedField(broken.Object, "%", "spec", "caBundle"); err != nil {
		t.Fatal(err)
	}
	a, _ = newAPIService(broken)
	if _, err := a.Read(t.Context()); err == nil {
		t.Error("what is no bundle is taken for one")
	}
}

func crd(name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
	}
}

func newClaims(t *testing.T, service *unstructured.Unstructured, crds ...runtime.Object) (*Claims, *dynamicfake.FakeDynamicClient, *fake.Clientset) {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	a, dynamic := newAPIService(service)
	kube := fake.NewClientset()
	return NewClaims(a, metadatafake.NewSimpleMetadataClient(scheme, crds...), kube, "server-0"), dynamic, kube
}

func TestClaims(t *testing.T) {
	ours := apiService("server", "team", "")
	for name, test := range map[string]struct {
		service *unstructured.Unstructured
		crds    []runtime.Object
		want    []string // what each claim says, in order
	}{
		"nobody":                    {service: ours, crds: []runtime.Object{crd("bundles.core.rukpak.io"), crd("rukpak.io.example.com"), crd("widgets.example.com")}},
		"another service":           {service: apiService("theirs", "team", ""), want: []string{`APIService v1alpha1.rukpak.io: it belongs to the service "theirs"`}},
		"the same resource":         {service: ours, crds: []runtime.Object{crd("bundles.rukpak.io")}, want: []string{"CustomResourceDefinition bundles.rukpak.io: it is of the group rukpak.io"}},
		"another resource":          {service: ours, crds: []runtime.Object{crd("widgets.rukpak.io"), crd("bundles.core.rukpak.io")}, want: []string{"widgets.rukpak.io"}},
		"a resource that was first": {service: apiService("", "", ""), crds: []runtime.Object{crd("bundles.rukpak.io")}, want: []string{"kube-apiserver serves rukpak.io/v1alpha1 itself", "bundles.rukpak.io"}},
	} {
		t.Run(name, func(t *testing.T) {
			c, _, kube := newClaims(t, test.service, test.crds...)
			c.round(t.Context(), map[types.UID]string{})
			err := c.Check(nil)
			if (err != nil) != (len(test.want) > 0) {
				t.Errorf("health: %v", err)
			}
			list, listErr := kube.EventsV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
			if listErr != nil || len(list.Items) != len(test.want) {
				t.Fatalf("%d events, %v", len(list.Items), listErr)
			}
			for i, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("health does not say %q: %v", want, err)
				}
				if e := list.Items[i]; e.Regarding.Name == "" || e.Regarding.UID == "" || e.Note == "" || e.Type != "Warning" {
					t.Errorf("event %+v", e)
				}
			}
		})
	}
}

// A claim is told once, and forgotten when it goes.
func TestClaimsComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, dynamic, kube := newClaims(t, apiService("theirs", "team", ""))
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = c.Run(ctx) }()
		events := func() int {
			list, err := kube.EventsV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return len(list.Items)
		}
		time.Sleep(3*claimsInterval + time.Second)
		synctest.Wait()
		if err := c.Check(nil); err == nil || events() != 1 {
			t.Errorf("%v, and %d events", err, events())
		}
		if _, err := dynamic.Resource(APIServices).Update(ctx, apiService("server", "team", ""), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(claimsInterval)
		synctest.Wait()
		if err := c.Check(nil); err != nil || events() != 1 {
			t.Errorf("%v, and %d events", err, events())
		}
		cancel()
		synctest.Wait()
	})
}
