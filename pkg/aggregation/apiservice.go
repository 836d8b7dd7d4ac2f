// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package aggregation is how kube-apiserver knows the server: the APIService, the authorities that it is to be trusted by, and whoever else
// lays claim to the same API.
package aggregation

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/identity"
)

var (
	// APIServices is the resource of APIServices.
	APIServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	// Name is that of the server's own APIService.
	Name = v1alpha1.SchemeGroupVersion.Version + "." + v1alpha1.GroupName
)

// fieldManager is who writes the caBundle.
const fieldManager = "rukpak-apiserver"

// APIService is the server's own APIService.
type APIService struct {
	client             dynamic.Interface
	service, namespace string
}

// New returns the APIService of the server behind a Service.
func New(client dynamic.Interface, service, namespace string) *APIService {
	return &APIService{client: client, service: service, namespace: namespace}
}

// View is the APIService at one moment.
type View struct {
	// Absent means that there is none.
	Absent bool
	// Foreign says who has the API, if not this server; empty if it is this one.
	Foreign string
	// CABundle is the authorities that kube-apiserver trusts, PEM. Empty means those of its system.
	CABundle []byte
	// Insecure means that kube-apiserver trusts anybody.
	Insecure bool

	uid             types.UID
	resourceVersion string
}

// Read reads the APIService.
func (a *APIService) Read(ctx context.Context) (View, error) {
	obj, err := a.client.Resource(APIServices).Get(ctx, Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return View{Absent: true}, nil
	}
	if err != nil {
		return View{}, fmt.Errorf("read the APIService %s: %w", Name, err)
	}
	v := View{Foreign: a.foreign(obj), uid: obj.GetUID(), resourceVersion: obj.GetResourceVersion()}
	v.Insecure, _, _ = unstructured.NestedBool(obj.Object, "spec", "insecureSkipTLSVerify")
	encoded, _, _ := unstructured.NestedString(obj.Object, "spec", "caBundle")
	if v.CABundle, err = base64.StdEncoding.DecodeString(encoded); err != nil {
		return View{}, fmt.Errorf("read the caBundle of the APIService %s: %w", Name, err)
	}
	return v, nil
}

func (a *APIService) foreign(obj *unstructured.Unstructured) string {
	service, found, _ := unstructured.NestedMap(obj.Object, "spec", "service")
	if !found || service == nil {
		return fmt.Sprintf("it has no service: kube-apiserver serves %s itself, from a CustomResourceDefinition of that group; delete that one first", v1alpha1.SchemeGroupVersion)
	}
	name, namespace := service["name"], service["namespace"]
	if name == a.service && namespace == a.namespace {
		return ""
	}
	return fmt.Sprintf("it belongs to the service %q in namespace %q, not to this server's %q in %q: two servers cannot serve one API", name, namespace, a.service, a.namespace)
}

// SetCABundle makes kube-apiserver trust other authorities. It fails with identity.ErrConflict if the
// APIService is no longer the one of the view.
func (a *APIService) SetCABundle(ctx context.Context, v View, bundle []byte) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": v.resourceVersion},
		"spec":     map[string]any{"caBundle": base64.StdEncoding.EncodeToString(bundle)},
	})
	if err != nil {
		return err
	}
	_, err = a.client.Resource(APIServices).Patch(ctx, Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if apierrors.IsConflict(err) {
		return fmt.Errorf("set the caBundle of the APIService %s: %w", Name, identity.ErrConflict)
	}
	if err != nil {
		return fmt.Errorf("set the caBundle of the APIService %s: %w", Name, err)
	}
	return nil
}

// Look makes the APIService the audience of a rotation. One that belongs to somebody else is left alone, as is one that
// trusts anybody, which must not have a caBundle.
func (a *APIService) Look(ctx context.Context) (identity.Published, error) {
	v, err := a.Read(ctx)
	if err != nil {
		return identity.Published{}, err
	}
	if v.Absent || v.Foreign != "" || v.Insecure {
		return identity.Published{Nobody: true}, nil
	}
	return identity.Published{Bundle: v.CABundle, Replace: func(ctx context.Context, bundle []byte) error {
		return a.SetCABundle(ctx, v, bundle)
	}}, nil
}
