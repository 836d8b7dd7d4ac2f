// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bundle is the registry of Bundles.
package bundle

import (
	"context"
	"slices"

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
	"rukpak.io/apiserver/pkg/provisioner"
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
	if c := o.Status.Content; c == nil || c.Generation != o.Generation || !sameContent(&b.Spec, &o.Spec, c.Digest) {
		b.Status.Refresh = nil
		begin(b)
		return
	}
	// What was found for the content stays so while the spec asks for the same, be it lost.
	b.Status.Content.Generation = b.Generation
	if !current(o) {
		begin(b)
		return
	}
	b.Status.ObservedGeneration = b.Generation
	for i := range b.Status.Conditions {
		b.Status.Conditions[i].ObservedGeneration = b.Generation
	}
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
		return a.Source.Image.Reference == b.Source.Image.Reference && a.Source.Image.Path == b.Source.Image.Path &&
			a.Source.Image.Platform == b.Source.Image.Platform
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
	if apiequality.Semantic.DeepEqual(b.Spec.Source, o.Spec.Source) && apiequality.Semantic.DeepEqual(b.Spec.RefreshIntervalSeconds, o.Spec.RefreshIntervalSeconds) {
		return nil
	}
	return warnings(&b.Spec)
}

// warnings are about what is allowed and may not be meant.
func warnings(s *rukpak.BundleSpec) []string {
	i := s.Source.Image
	if i == nil || i.Reference == "" {
		return nil
	}
	switch mutable := validation.MutableReference(i.Reference); {
	case mutable && s.RefreshIntervalSeconds == nil:
		return []string{"spec.source.image.reference: \"" + i.Reference + "\" has no digest, so what it names can change; the content stays what it is when it is unpacked"}
	case !mutable && s.RefreshIntervalSeconds != nil:
		return []string{"spec.refreshIntervalSeconds: has no effect, since \"" + i.Reference + "\" has a digest, so that it always names the same"}
	}
	return nil
}

// statusStrategy is that of the subresource status: everything but the status stays, and of the status
// what only the server may say.
type statusStrategy struct {
	strategy
	// provisioner returns who provisions a bundle, "" if nobody knows.
	provisioner func(context.Context, *rukpak.Bundle) string
}

var _ rest.ResetFieldsStrategy = statusStrategy{}

func (statusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(v1alpha1.SchemeGroupVersion.String()): fieldpath.NewSet(
			fieldpath.MakePathOrDie("spec"),
			fieldpath.MakePathOrDie("metadata", "labels"),
			fieldpath.MakePathOrDie("metadata", "annotations"),
			fieldpath.MakePathOrDie("metadata", "finalizers"),
			fieldpath.MakePathOrDie("metadata", "ownerReferences"),
			fieldpath.MakePathOrDie("status", "content"),
			fieldpath.MakePathOrDie("status", "history"),
			fieldpath.MakePathOrDie("status", "resolvedSource"),
			fieldpath.MakePathOrDie("status", "phase"),
			// The server writes these, by an update and not by an apply.
			fieldpath.MakePathOrDie("status", "unpack"),
			fieldpath.MakePathOrDie("status", "refresh"),
			fieldpath.MakePathOrDie("status", "provisioner"),
		),
	}
}

// PrepareForUpdate keeps what the caller may not write: content, history and the resolved source,
// which name bytes and where they came from, are written by the commit of content alone; the attempt, which
// says whose content is taken, and what depends on it, by the server's own reconciler. What there is to say of
// the progress of a bundle its provisioner says.
func (s statusStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	b, o := obj.(*rukpak.Bundle), old.(*rukpak.Bundle)
	b.Spec = o.Spec
	metav1.ResetObjectMetaForStatus(&b.ObjectMeta, &o.ObjectMeta)
	b.Status.Content = o.Status.Content
	b.Status.History = o.Status.History
	b.Status.ResolvedSource = o.Status.ResolvedSource
	if !FromLoopback(ctx) {
		b.Status.Unpack, b.Status.Refresh, b.Status.Provisioner = o.Status.Unpack, o.Status.Refresh, o.Status.Provisioner
		kept := conditions.OfContent
		// Until it is known whose a bundle is, its conditions are what they were made as.
		if who := s.provisioner(ctx, o); who == "" || provisioner.BuiltIn(who) {
			kept = conditions.Own
			b.Status.ObservedGeneration = o.Status.ObservedGeneration
			b.Status.LastHandledRetry, b.Status.LastHandledRefresh = o.Status.LastHandledRetry, o.Status.LastHandledRefresh
		}
		keepConditions(&b.Status, &o.Status, kept)
	}
	b.Status.Phase = rukpak.BundlePhase(conditions.Phase(b.Status.Conditions))
}

// keepConditions puts back those of the server's own conditions that a write leaves out, since what they say is still so, and those that
// are kept from the writer. Others than these anybody may add, and take away again.
func keepConditions(s, old *rukpak.BundleStatus, kept func(kind string) bool) {
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c metav1.Condition) bool {
		return kept(c.Type) && meta.FindStatusCondition(old.Conditions, c.Type) == nil
	})
	for i, c := range s.Conditions {
		if kept(c.Type) {
			s.Conditions[i] = *meta.FindStatusCondition(old.Conditions, c.Type)
		}
	}
	for _, c := range old.Conditions {
		if conditions.Own(c.Type) && meta.FindStatusCondition(s.Conditions, c.Type) == nil {
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
