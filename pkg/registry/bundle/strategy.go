// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bundle is the registry of Bundles.
package bundle

import (
	"context"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/apis/rukpak/validation"
	"rukpak.io/apiserver/pkg/traceparent"
)

type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	rest.DeclarativeValidation
}

var (
	_ rest.RESTCreateStrategy            = strategy{}
	_ rest.RESTUpdateStrategy            = strategy{}
	_ rest.ResetFieldsStrategy           = strategy{}
	_ rest.DeclarativeValidationStrategy = strategy{}
)

func newStrategy(scheme *runtime.Scheme) strategy {
	return strategy{scheme, names.SimpleNameGenerator, rest.DeclarativeValidation{Scheme: scheme}}
}

func (strategy) NamespaceScoped() bool                         { return true }
func (strategy) AllowCreateOnUpdate(context.Context) bool      { return false }
func (strategy) AllowUnconditionalUpdate(context.Context) bool { return true }
func (strategy) Canonicalize(runtime.Object)                   {}

// GetResetFields names what an update of the bundle itself never changes.
func (strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(v1alpha1.SchemeGroupVersion.String()): fieldpath.NewSet(fieldpath.MakePathOrDie("status")),
	}
}

func (strategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	b := obj.(*rukpak.Bundle)
	b.Generation = 1
	b.Status = rukpak.BundleStatus{}
	setTraceParent(b, traceparent.Of(ctx))
	begin(b)
}

// PrepareForUpdate keeps the status, and begins anew with it where the spec changes: nobody ever sees
// the yes of an earlier generation beside a new spec. A change that asks for the same content keeps it.
func (strategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	b, o := obj.(*rukpak.Bundle), old.(*rukpak.Bundle)
	b.Status = o.Status
	b.Generation = o.Generation
	dropDefaulted(&b.Spec.Source, &o.Spec.Source)
	if apiequality.Semantic.DeepEqual(b.Spec, o.Spec) {
		setTraceParent(b, o.Annotations[v1alpha1.AnnotationTraceParent])
		return
	}
	setTraceParent(b, traceparent.Of(ctx))
	b.Generation++
	b.Status = *o.Status.DeepCopy()
	if current(o) && sameContent(&b.Spec, &o.Spec, o.Status.Content.Digest) {
		b.Status.Content.Generation = b.Generation
		b.Status.ObservedGeneration = b.Generation
		for i := range b.Status.Conditions {
			b.Status.Conditions[i].ObservedGeneration = b.Generation
		}
		return
	}
	begin(b)
}

// setTraceParent makes the annotation what the server says. The value of a client would let it have traces recorded that
// nobody chose to.
func setTraceParent(b *rukpak.Bundle, value string) {
	if value == "" {
		delete(b.Annotations, v1alpha1.AnnotationTraceParent)
		return
	}
	metav1.SetMetaDataAnnotation(&b.ObjectMeta, v1alpha1.AnnotationTraceParent, value)
}

// dropDefaulted takes out the member of a source's former type when all that is left of it was filled in by the
// server: who applied the former type did not set it, and could not unset it.
func dropDefaulted(source, old *rukpak.BundleSource) {
	if source.Type == old.Type {
		return
	}
	if source.Type != rukpak.SourceTypeImage && source.Image != nil && source.Image.Reference == "" {
		source.Image = nil
	}
	if source.Type != rukpak.SourceTypeUpload && source.Upload != nil && source.Upload.Digest == "" {
		source.Upload = nil
	}
}

// begin sets the status of a generation that nobody has worked on.
func begin(b *rukpak.Bundle) {
	conditions.Begin(&b.Status.Conditions, b.Generation)
	b.Status.Phase = rukpak.BundlePhase(conditions.Phase(b.Status.Conditions))
}

// current reports whether the content of a bundle is that of its generation.
func current(b *rukpak.Bundle) bool {
	return b.Status.Content != nil && b.Status.Content.Generation == b.Generation &&
		meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionUnpacked)
}

// sameContent reports whether two specs ask for the same content, which has a digest: how it is fetched, and on
// whose behalf, does not matter once it is there.
func sameContent(a, b *rukpak.BundleSpec, digest string) bool {
	if a.Source.Type != b.Source.Type || a.ProvisionerClassName != b.ProvisionerClassName {
		return false
	}
	if a.Source.Image != nil && b.Source.Image != nil {
		return a.Source.Image.Reference == b.Source.Image.Reference && a.Source.Image.Path == b.Source.Image.Path
	}
	if a.Source.Upload != nil && b.Source.Upload != nil {
		return a.Source.Upload.Digest == "" || a.Source.Upload.Digest == digest
	}
	return apiequality.Semantic.DeepEqual(a.Source, b.Source)
}

func (strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.Bundle(obj.(*rukpak.Bundle))
}

func (strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.BundleUpdate(obj.(*rukpak.Bundle), old.(*rukpak.Bundle))
}

func (strategy) WarningsOnCreate(_ context.Context, obj runtime.Object) []string {
	return warnings(&obj.(*rukpak.Bundle).Spec)
}

func (strategy) WarningsOnUpdate(_ context.Context, obj, old runtime.Object) []string {
	b, o := obj.(*rukpak.Bundle), old.(*rukpak.Bundle)
	if apiequality.Semantic.DeepEqual(b.Spec.Source, o.Spec.Source) {
		return nil
	}
	return warnings(&b.Spec)
}

func warnings(s *rukpak.BundleSpec) []string {
	if i := s.Source.Image; i != nil && i.Reference != "" && validation.MutableReference(i.Reference) {
		return []string{"spec.source.image.reference: \"" + i.Reference + "\" has no digest, so what it names can change; the content stays what it is when it is unpacked"}
	}
	return nil
}

// statusStrategy is that of the subresource status: everything but the status stays, and of the status
// what only the server may say.
type statusStrategy struct {
	strategy
}

var _ rest.ResetFieldsStrategy = statusStrategy{}

func (statusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(v1alpha1.SchemeGroupVersion.String()): fieldpath.NewSet(
			fieldpath.MakePathOrDie("spec"),
			fieldpath.MakePathOrDie("status", "content"),
			fieldpath.MakePathOrDie("status", "history"),
			fieldpath.MakePathOrDie("status", "resolvedSource"),
			fieldpath.MakePathOrDie("status", "phase"),
		),
	}
}

// PrepareForUpdate keeps what the caller may not write: content, history and the resolved source,
// which name bytes and where they came from, are written by the commit of content alone; the attempt, which
// says whose content is taken, by the server's own reconciler.
func (statusStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	b, o := obj.(*rukpak.Bundle), old.(*rukpak.Bundle)
	b.Spec = o.Spec
	metav1.ResetObjectMetaForStatus(&b.ObjectMeta, &o.ObjectMeta)
	b.Status.Content = o.Status.Content
	b.Status.History = o.Status.History
	b.Status.ResolvedSource = o.Status.ResolvedSource
	if !FromLoopback(ctx) {
		b.Status.Unpack = o.Status.Unpack
		keepConditions(&b.Status, &o.Status)
	}
	b.Status.Phase = rukpak.BundlePhase(conditions.Phase(b.Status.Conditions))
}

// keepConditions puts back the conditions that a write leaves out: what they say is still so.
func keepConditions(s, old *rukpak.BundleStatus) {
	for _, c := range old.Conditions {
		if meta.FindStatusCondition(s.Conditions, c.Type) == nil {
			s.Conditions = append(s.Conditions, c)
		}
	}
}

func (statusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.BundleStatusUpdate(obj.(*rukpak.Bundle), old.(*rukpak.Bundle))
}

func (statusStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// commitStrategy is that of the commit of content, which runs in this process and may write all of the status.
type commitStrategy struct {
	statusStrategy
}

func (commitStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	b, o := obj.(*rukpak.Bundle), old.(*rukpak.Bundle)
	b.Spec = o.Spec
	metav1.ResetObjectMetaForStatus(&b.ObjectMeta, &o.ObjectMeta)
	b.Status.Phase = rukpak.BundlePhase(conditions.Phase(b.Status.Conditions))
}
