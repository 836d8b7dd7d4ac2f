// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/dryrun"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// Storage holds all ways to the stored bundles.
type Storage struct {
	Bundle *REST
	Status *StatusREST
	commit *genericregistry.Store
}

// Classes reads classes as etcd has them now.
type Classes interface {
	Class(ctx context.Context, name string) (*rukpak.ProvisionerClass, error)
}

// NewStorage makes the storage of bundles. Classes tell whose a bundle is, and so who may say what about it; without
// them, the bundle itself tells. deleted is called with each bundle that has been deleted, by
// the one process that did it, and not again if that ends in between.
func NewStorage(scheme *runtime.Scheme, getter generic.RESTOptionsGetter, classes Classes, deleted func(*rukpak.Bundle)) (*Storage, error) {
	s := newStrategy(scheme)
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &rukpak.Bundle{} },
		NewListFunc:               func() runtime.Object { return &rukpak.BundleList{} },
		PredicateFunc:             match,
		DefaultQualifiedResource:  rukpak.Resource("bundles"),
		SingularQualifiedResource: rukpak.Resource("bundle"),
		CreateStrategy:            s,
		UpdateStrategy:            s,
		DeleteStrategy:            s,
		ResetFieldsStrategy:       s,
		AfterDelete: func(obj runtime.Object, options *metav1.DeleteOptions) {
			// It is called for a dry run, too, after which the bundle is still there.
			if b, ok := obj.(*rukpak.Bundle); ok && !(options != nil && dryrun.IsDryRun(options.DryRun)) {
				deleted(b)
			}
		},
		TableConvertor: table{},
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: getter, AttrFunc: attributes}); err != nil {
		return nil, err
	}
	status := *store
	of := statusStrategy{s, provisionerOf(classes)}
	status.UpdateStrategy = of
	status.ResetFieldsStrategy = of
	commit := *store
	commit.UpdateStrategy = commitStrategy{of}
	return &Storage{Bundle: &REST{store}, Status: &StatusREST{&status}, commit: &commit}, nil
}

// provisionerOf returns the function that finds out who provisions a bundle: the class says so, and where it
// is gone what was noted last.
func provisionerOf(classes Classes) func(context.Context, *rukpak.Bundle) string {
	return func(ctx context.Context, b *rukpak.Bundle) string {
		if name := b.Spec.ProvisionerClassName; classes != nil && name != "" {
			if class, err := classes.Class(ctx, name); err == nil {
				return class.Provisioner
			}
		}
		return b.Status.Provisioner
	}
}

// Get reads a bundle as etcd has it now. The namespace is in ctx.
func (s *Storage) Get(ctx context.Context, name string) (*rukpak.Bundle, error) {
	return asBundle(s.Bundle.Get(ctx, name, &metav1.GetOptions{}))
}

// ListCached reads all bundles as this process knows them, which costs etcd nothing. They are not to be changed.
func (s *Storage) ListCached(ctx context.Context) ([]rukpak.Bundle, error) {
	return s.list(ctx, &internalversion.ListOptions{ResourceVersion: "0"})
}

// List reads the bundles of the namespace in ctx as etcd has them now, or all where there is none in it.
func (s *Storage) List(ctx context.Context) ([]rukpak.Bundle, error) {
	return s.list(ctx, nil)
}

func (s *Storage) list(ctx context.Context, options *internalversion.ListOptions) ([]rukpak.Bundle, error) {
	obj, err := s.Bundle.ListPredicate(ctx, match(labels.Everything(), fields.Everything()), options)
	if err != nil {
		return nil, err
	}
	list, ok := obj.(*rukpak.BundleList)
	if !ok {
		return nil, fmt.Errorf("storage of bundles holds a %T", obj)
	}
	return list.Items, nil
}

// Commit changes the status of a bundle on behalf of the server itself: content, history and
// resolved source too. change is called with a copy of the newest state, again whenever another
// write came first; its error ends the update and is returned. The namespace is in ctx, which
// need not be that of a request.
func (s *Storage) Commit(ctx context.Context, name string, change func(*rukpak.Bundle) error) (*rukpak.Bundle, error) {
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		b, err := asBundle(old, nil)
		if err != nil {
			return nil, err
		}
		b = b.DeepCopy()
		return b, change(b)
	})
	// Declarative validation takes the version of the API from the request; the server may have none.
	ctx = genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{
		IsResourceRequest: true, APIGroup: v1alpha1.GroupName, APIVersion: v1alpha1.SchemeGroupVersion.Version,
		Namespace: genericapirequest.NamespaceValue(ctx), Resource: "bundles", Subresource: "status", Name: name, Verb: "update",
	})
	obj, _, err := s.commit.Update(ctx, name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	return asBundle(obj, err)
}

func asBundle(obj runtime.Object, err error) (*rukpak.Bundle, error) {
	if err != nil {
		return nil, err
	}
	b, ok := obj.(*rukpak.Bundle)
	if !ok {
		return nil, fmt.Errorf("storage of bundles holds a %T", obj)
	}
	return b, nil
}

// FromLoopback reports whether a request comes from this server itself: its loopback identity, which
// is a secret of the process and passes every authorization.
func FromLoopback(ctx context.Context) bool {
	u, ok := genericapirequest.UserFrom(ctx)
	// Who may impersonate users has the name; the group takes the right to impersonate that one as well, with
	// which one is everything anyway.
	return ok && u.GetName() == user.APIServerUser && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

// REST serves bundles.
type REST struct {
	*genericregistry.Store
}

var (
	_ rest.StandardStorage    = &REST{}
	_ rest.ShortNamesProvider = &REST{}
	_ rest.CategoriesProvider = &REST{}
)

// ShortNames are the short names of the resource.
func (*REST) ShortNames() []string { return []string{"bun"} }

// Categories are the groups of resources that this one is listed with.
func (*REST) Categories() []string { return []string{"rukpak"} }

// StatusREST serves the subresource status.
type StatusREST struct {
	store *genericregistry.Store
}

var (
	_ rest.Patcher             = &StatusREST{}
	_ rest.ResetFieldsStrategy = &StatusREST{}
	_ rest.TableConvertor      = &StatusREST{}
)

// New returns an empty bundle.
func (*StatusREST) New() runtime.Object { return &rukpak.Bundle{} }

// Destroy does nothing: the storage is that of the bundles.
func (*StatusREST) Destroy() {}

// Get reads a bundle.
func (r *StatusREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// Update changes the status of a bundle, and never makes one.
func (r *StatusREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, info, create, update, false, options)
}

// GetResetFields names what an update of the status never changes.
func (r *StatusREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

// ConvertToTable prints a bundle.
func (r *StatusREST) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, object, options)
}

func attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	b, err := asBundle(obj, nil)
	if err != nil {
		return nil, nil, err
	}
	set := fields.Set{
		v1alpha1.FieldClass:      b.Spec.ProvisionerClassName,
		v1alpha1.FieldSourceType: string(b.Spec.Source.Type),
		v1alpha1.FieldPhase:      string(b.Status.Phase),
	}
	return b.Labels, generic.AddObjectMetaFieldsSet(set, &b.ObjectMeta, true), nil
}

func match(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
	return storage.SelectionPredicate{Label: label, Field: field, GetAttrs: attributes}
}
