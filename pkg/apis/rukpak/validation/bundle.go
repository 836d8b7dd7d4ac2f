// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"encoding/json"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	apimachineryvalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/platform"
)

// Bounds of refreshIntervalSeconds. Each look runs a pod, which is why they are not more often.
const (
	minRefreshSeconds = 30
	maxRefreshSeconds = 30 * 24 * 60 * 60
)

// maxPullSecrets bounds how many pull secrets a bundle names: for each the server asks whether the requester may use it.
const maxPullSecrets = 16

// maxPathLength bounds the path inside an image, in bytes: PATH_MAX of Linux.
const maxPathLength = 4096

// Bounds of the conditions beside the server's own: how many, and how many bytes they take as JSON, in which a byte of a message can become
// six. They leave two thirds of the 1.5 MiB that etcd takes as one object to the rest of it.
const (
	maxOtherConditions = 32
	maxOtherBytes      = 512 << 10
)

// Bundle validates a bundle, all but its status.
func Bundle(b *rukpak.Bundle) field.ErrorList {
	errs := apimachineryvalidation.ValidateObjectMeta(&b.ObjectMeta, true, apimachineryvalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	errs = append(errs, requests(b.Annotations, nil)...)
	errs = append(errs, pullSecrets(&b.Spec, 0)...)
	return append(errs, bundleSpec(&b.Spec, field.NewPath("spec"))...)
}

// BundleUpdate validates a change of a bundle, all but its status.
func BundleUpdate(b, old *rukpak.Bundle) field.ErrorList {
	errs := apimachineryvalidation.ValidateObjectMetaUpdate(&b.ObjectMeta, &old.ObjectMeta, field.NewPath("metadata"))
	class, oldClass := b.Spec.ProvisionerClassName, old.Spec.ProvisionerClassName
	if oldClass != "" && class != oldClass {
		errs = append(errs, field.Invalid(field.NewPath("spec", "provisionerClassName"), class, "is set once and cannot be changed from \""+oldClass+"\": delete the bundle and create it anew"))
	}
	errs = append(errs, requests(b.Annotations, old.Annotations)...)
	errs = append(errs, pullSecrets(&b.Spec, len(old.Spec.ImagePullSecrets))...)
	return append(errs, bundleSpec(&b.Spec, field.NewPath("spec"))...)
}

// pullSecrets validates how many there are. What an object had before the bound came stays allowed.
func pullSecrets(s *rukpak.BundleSpec, old int) field.ErrorList {
	n := len(s.ImagePullSecrets)
	if n <= max(maxPullSecrets, old) {
		return nil
	}
	return field.ErrorList{field.TooMany(field.NewPath("spec", "imagePullSecrets"), n, maxPullSecrets)}
}

// requests validates the annotations that ask for something, since status echoes their values. What an object had before the bound
// came stays allowed.
func requests(annotations, old map[string]string) field.ErrorList {
	var errs field.ErrorList
	for _, key := range []string{v1alpha1.AnnotationRetry, v1alpha1.AnnotationRefresh} {
		errs = append(errs, bounded(annotations[key], old[key], field.NewPath("metadata", "annotations").Key(key))...)
	}
	return errs
}

// echo validates the echo of a value that somebody asked with. What the object has is echoed, however long: it may have had it before
// the bound came, and then its provisioner could write no status at all.
func echo(value, old, asked string, at *field.Path) field.ErrorList {
	if value == asked {
		return nil
	}
	return bounded(value, old, at)
}

// bounded validates a value that somebody asked with, or its echo.
func bounded(value, old string, at *field.Path) field.ErrorList {
	if len(value) <= v1alpha1.MaxRequestBytes || value == old {
		return nil
	}
	return field.ErrorList{field.TooLong(at, value, v1alpha1.MaxRequestBytes)}
}

// BundleStatusUpdate validates a change of a bundle's status. What was there before is let be.
func BundleStatusUpdate(b, old *rukpak.Bundle) field.ErrorList {
	errs := apimachineryvalidation.ValidateObjectMetaUpdate(&b.ObjectMeta, &old.ObjectMeta, field.NewPath("metadata"))
	at := field.NewPath("status")
	errs = append(errs, conditionsUpdate(b.Status.Conditions, old.Status.Conditions, at.Child("conditions"))...)
	errs = append(errs, echo(b.Status.LastHandledRetry, old.Status.LastHandledRetry, b.Annotations[v1alpha1.AnnotationRetry], at.Child("lastHandledRetry"))...)
	errs = append(errs, echo(b.Status.LastHandledRefresh, old.Status.LastHandledRefresh, b.Annotations[v1alpha1.AnnotationRefresh], at.Child("lastHandledRefresh"))...)
	if n := b.Status.ObservedGeneration; n < 0 || n > b.Generation {
		errs = append(errs, field.Invalid(at.Child("observedGeneration"), n, "must be between 0 and metadata.generation"))
	}
	return errs
}

// conditionsUpdate validates conditions by the bounds of metav1.Condition, but those that have not changed. Each type may be there once.
func conditionsUpdate(list, old []metav1.Condition, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, c := range list {
		if seen.Has(c.Type) {
			errs = append(errs, field.Duplicate(at.Index(i), c.Type))
		}
		seen.Insert(c.Type)
		if before := meta.FindStatusCondition(old, c.Type); before == nil || !apiequality.Semantic.DeepEqual(*before, c) {
			errs = append(errs, metav1validation.ValidateCondition(c, at.Index(i))...)
		}
	}
	for _, e := range errs {
		e.CoveredByDeclarative = false // no tag on the type says so, since it is another's
	}
	n, size := others(list)
	oldN, oldSize := others(old)
	if n > max(maxOtherConditions, oldN) {
		errs = append(errs, field.TooMany(at, n, maxOtherConditions))
	}
	if size > max(maxOtherBytes, oldSize) {
		errs = append(errs, field.TooLong(at, nil, maxOtherBytes))
	}
	return errs
}

// others counts the conditions beside the server's own, and their bytes as JSON. Those are not counted, so that the server can always
// say what there is to say.
func others(list []metav1.Condition) (n, size int) {
	for _, c := range list {
		if conditions.Own(c.Type) {
			continue
		}
		n++
		encoded, _ := json.Marshal(c) // strings, a number and a time: there is nothing that cannot be encoded
		size += len(encoded)
	}
	return n, size
}

func bundleSpec(s *rukpak.BundleSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.ProvisionerClassName != "" {
		errs = append(errs, subdomain(s.ProvisionerClassName, at.Child("provisionerClassName"))...)
	}
	if s.ServiceAccountName != "" {
		errs = append(errs, subdomain(s.ServiceAccountName, at.Child("serviceAccountName"))...)
	}
	errs = append(errs, secretNames(s.ImagePullSecrets, at.Child("imagePullSecrets"))...)
	if n := s.RefreshIntervalSeconds; n != nil && (*n < minRefreshSeconds || *n > maxRefreshSeconds) {
		errs = append(errs, field.Invalid(at.Child("refreshIntervalSeconds"), *n, validation.InclusiveRangeError(minRefreshSeconds, maxRefreshSeconds)))
	}
	source := at.Child("source")
	switch s.Source.Type {
	case rukpak.SourceTypeImage:
		if s.Source.Image != nil {
			errs = append(errs, imageSource(s.Source.Image, source.Child("image"))...)
		}
	case rukpak.SourceTypeUpload:
		if s.Source.Upload != nil {
			errs = append(errs, uploadSource(s.Source.Upload, source.Child("upload"))...)
		}
		if s.ServiceAccountName != "" {
			errs = append(errs, field.Forbidden(at.Child("serviceAccountName"), "source type Upload runs no pod"))
		}
		if len(s.ImagePullSecrets) > 0 {
			errs = append(errs, field.Forbidden(at.Child("imagePullSecrets"), "source type Upload pulls no image"))
		}
		if s.RefreshIntervalSeconds != nil {
			errs = append(errs, field.Forbidden(at.Child("refreshIntervalSeconds"), "source type Upload has nothing to look up"))
		}
	}
	return errs
}

func imageSource(s *rukpak.ImageSource, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.Reference != "" {
		if _, err := name.ParseReference(s.Reference, name.WeakValidation); err != nil {
			errs = append(errs, field.Invalid(at.Child("reference"), s.Reference, err.Error()))
		} else if strings.TrimSpace(s.Reference) != s.Reference {
			errs = append(errs, field.Invalid(at.Child("reference"), s.Reference, "must not begin or end with white space"))
		}
	}
	if s.PullPolicy != "" && !pullPolicies.Has(s.PullPolicy) {
		errs = append(errs, field.NotSupported(at.Child("pullPolicy"), s.PullPolicy, sets.List(pullPolicies)))
	}
	switch p := s.Path; {
	case p == "":
	case !path.IsAbs(p):
		errs = append(errs, field.Invalid(at.Child("path"), p, "must be absolute"))
	case path.Clean(p) != p:
		errs = append(errs, field.Invalid(at.Child("path"), p, "must be in its shortest form, \""+path.Clean(p)+"\""))
	case len(p) > maxPathLength:
		errs = append(errs, field.TooLong(at.Child("path"), p, maxPathLength))
	case strings.ContainsRune(p, 0):
		errs = append(errs, field.Invalid(at.Child("path"), p, "must not contain a NUL"))
	}
	if s.Platform != "" {
		if _, err := platform.Parse(s.Platform); err != nil {
			errs = append(errs, field.Invalid(at.Child("platform"), s.Platform, err.Error()))
		}
	}
	return errs
}

func uploadSource(s *rukpak.UploadSource, at *field.Path) field.ErrorList {
	if s.Digest == "" {
		return nil
	}
	if _, err := content.ParseDigest(s.Digest); err != nil {
		return field.ErrorList{field.Invalid(at.Child("digest"), s.Digest, err.Error())}
	}
	return nil
}

// MutableReference reports whether what reference names can change: whether it names no digest.
func MutableReference(reference string) bool {
	_, err := name.NewDigest(reference, name.WeakValidation)
	return err != nil
}
