// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// opener opens the storage of a resource.
type opener func() (storage.Interface, factory.DestroyFunc, error)

// wrappingGetter gives storage that is opened through a function of ours.
type wrappingGetter struct {
	generic.RESTOptionsGetter
	open func(opener) (storage.Interface, factory.DestroyFunc, error)
}

func (g wrappingGetter) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := g.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil {
		return options, err
	}
	decorate := options.Decorator
	options.Decorator = func(config *storagebackend.ConfigForResource, prefix string, key func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
		attributes storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		return g.open(func() (storage.Interface, factory.DestroyFunc, error) {
			return decorate(config, prefix, key, newFunc, newListFunc, attributes, triggers, indexers)
		})
	}
	return options, nil
}
