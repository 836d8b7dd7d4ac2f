// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package provisionerclass

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"rukpak.io/apiserver/pkg/apis/rukpak"
)

// REST serves provisionerclasses.
type REST struct {
	*genericregistry.Store
}

var (
	_ rest.StandardStorage    = &REST{}
	_ rest.ShortNamesProvider = &REST{}
	_ rest.CategoriesProvider = &REST{}
)

// NewREST makes the storage of classes. stores are the names of the configured content stores.
func NewREST(scheme *runtime.Scheme, getter generic.RESTOptionsGetter, stores sets.Set[string]) (*REST, error) {
	s := newStrategy(scheme, stores)
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &rukpak.ProvisionerClass{} },
		NewListFunc:               func() runtime.Object { return &rukpak.ProvisionerClassList{} },
		DefaultQualifiedResource:  rukpak.Resource("provisionerclasses"),
		SingularQualifiedResource: rukpak.Resource("provisionerclass"),
		CreateStrategy:            s,
		UpdateStrategy:            s,
		DeleteStrategy:            s,
		TableConvertor:            table{},
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: getter}); err != nil {
		return nil, err
	}
	return &REST{store}, nil
}

// ShortNames are the short names of the resource.
func (*REST) ShortNames() []string { return []string{"pclass"} }

// Categories are the groups of resources that this one is listed with.
func (*REST) Categories() []string { return []string{"rukpak"} }

// Class reads a class as etcd has it now.
func (r *REST) Class(ctx context.Context, name string) (*rukpak.ProvisionerClass, error) {
	obj, err := r.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	class, ok := obj.(*rukpak.ProvisionerClass)
	if !ok {
		return nil, fmt.Errorf("storage of classes holds a %T", obj)
	}
	return class, nil
}
