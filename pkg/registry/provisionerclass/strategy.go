// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package provisionerclass is the registry of ProvisionerClasses.
package provisionerclass

import (
	"context"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/validation"
)

type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	rest.DeclarativeValidation
	stores sets.Set[string]
}

var (
	_ rest.RESTCreateStrategy            = strategy{}
	_ rest.RESTUpdateStrategy            = strategy{}
	_ rest.DeclarativeValidationStrategy = strategy{}
)

func newStrategy(scheme *runtime.Scheme, stores sets.Set[string]) strategy {
	return strategy{scheme, names.SimpleNameGenerator, rest.DeclarativeValidation{Scheme: scheme}, stores}
}

func (strategy) NamespaceScoped() bool                         { return false }
func (strategy) AllowCreateOnUpdate(context.Context) bool      { return false }
func (strategy) AllowUnconditionalUpdate(context.Context) bool { return true }
func (strategy) Canonicalize(runtime.Object)                   {}

func (strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	obj.(*rukpak.ProvisionerClass).Generation = 1
}

// PrepareForUpdate counts the generations: a class has no spec, so all but its metadata makes one.
func (strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	newClass, oldClass := obj.(*rukpak.ProvisionerClass), old.(*rukpak.ProvisionerClass)
	newClass.Generation = oldClass.Generation
	a, b := *newClass, *oldClass
	a.TypeMeta, a.ObjectMeta = b.TypeMeta, b.ObjectMeta
	if !apiequality.Semantic.DeepEqual(a, b) {
		newClass.Generation++
	}
}

func (s strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.Class(obj.(*rukpak.ProvisionerClass), s.stores)
}

func (s strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ClassUpdate(obj.(*rukpak.ProvisionerClass), old.(*rukpak.ProvisionerClass), s.stores)
}

func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }
func (strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}
