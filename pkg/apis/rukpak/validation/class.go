// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package validation holds the rules of the API that tags on the types cannot express.
package validation

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apimachineryvalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/platform"
	"rukpak.io/apiserver/pkg/provisioner"
)

// reservedPrefix is that of the labels and annotations that the server itself gives a meaning.
const reservedPrefix = "rukpak.io/"

// Bounds of the numbers in a class.
const (
	maxTimeoutSeconds       = 24 * 60 * 60
	maxBackoffLimit         = 100
	maxRevisionHistoryLimit = 100
)

var (
	pullPolicies = sets.New(corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)
	userSources  = sets.New(rukpak.UserFromClass, rukpak.UserFromCluster)
)

// Class validates a class. stores are the names of the configured content stores.
func Class(c *rukpak.ProvisionerClass, stores sets.Set[string]) field.ErrorList {
	errs := apimachineryvalidation.ValidateObjectMeta(&c.ObjectMeta, false, apimachineryvalidation.NameIsDNSSubdomain, field.NewPath("metadata"))

	path := field.NewPath("provisioner")
	if c.Provisioner != "" {
		errs = append(errs, provisionerName(c.Provisioner, path)...)
	}
	if err := provisioner.ValidateParameters(c.Provisioner, c.Parameters); err != nil {
		errs = append(errs, field.Invalid(field.NewPath("parameters"), c.Parameters, err.Error()))
	}
	if !stores.Has(c.Store) {
		errs = append(errs, field.NotSupported(field.NewPath("store"), c.Store, sets.List(stores)))
	}
	errs = append(errs, limits(c.Limits, field.NewPath("limits"))...)
	if n := c.RevisionHistoryLimit; n != nil && (*n < 0 || *n > maxRevisionHistoryLimit) {
		errs = append(errs, field.Invalid(field.NewPath("revisionHistoryLimit"), *n, validation.InclusiveRangeError(0, maxRevisionHistoryLimit)))
	}
	return append(errs, unpackPolicy(c.Unpack, field.NewPath("unpack"))...)
}

// provisionerName wants the prefix of a domain, so that it is known whose a provisioner is. Under this API's own domain
// there are the built-in ones alone: a misspelt one would wait for a controller that nobody has.
func provisionerName(name string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range validation.IsQualifiedName(strings.ToLower(name)) {
		errs = append(errs, field.Invalid(path, name, msg))
	}
	if !strings.Contains(name, "/") {
		errs = append(errs, field.Invalid(path, name, "must have the prefix of a domain, as in example.com/name"))
	}
	if strings.HasPrefix(name, reservedPrefix) && !provisioner.BuiltIn(name) {
		errs = append(errs, field.Invalid(path, name, "the prefix "+reservedPrefix+" is that of the built-in provisioners, "+
			v1alpha1.ProvisionerPlain+" and "+v1alpha1.ProvisionerRaw+"; one of yours has the prefix of a domain of yours, as in example.com/name"))
	}
	return errs
}

// ClassUpdate validates a change of a class.
func ClassUpdate(c, old *rukpak.ProvisionerClass, stores sets.Set[string]) field.ErrorList {
	errs := apimachineryvalidation.ValidateObjectMetaUpdate(&c.ObjectMeta, &old.ObjectMeta, field.NewPath("metadata"))
	return append(errs, Class(c, stores)...)
}

func limits(l *rukpak.ContentLimits, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if l == nil {
		return nil
	}
	bytes := func(q *resource.Quantity, name string) {
		switch {
		case q == nil:
		case q.Sign() <= 0:
			errs = append(errs, field.Invalid(path.Child(name), q.String(), "must be greater than 0"))
		case q.MilliValue()%1000 != 0 && q.CmpInt64(1<<50) < 0:
			// As 100m, which was meant to be 100M.
			errs = append(errs, field.Invalid(path.Child(name), q.String(), "must be a whole number of bytes: m is a thousandth, M a million"))
		}
	}
	bytes(l.CompressedBytes, "compressedBytes")
	bytes(l.Bytes, "bytes")
	if l.Files != nil && *l.Files <= 0 {
		errs = append(errs, field.Invalid(path.Child("files"), *l.Files, "must be greater than 0"))
	}
	return errs
}

func unpackPolicy(u *rukpak.UnpackPolicy, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if u == nil {
		return nil
	}
	if n := u.TimeoutSeconds; n != nil && (*n < 1 || *n > maxTimeoutSeconds) {
		errs = append(errs, field.Invalid(path.Child("timeoutSeconds"), *n, validation.InclusiveRangeError(1, maxTimeoutSeconds)))
	}
	if n := u.BackoffLimit; n != nil && (*n < 0 || *n > maxBackoffLimit) {
		errs = append(errs, field.Invalid(path.Child("backoffLimit"), *n, validation.InclusiveRangeError(0, maxBackoffLimit)))
	}
	seen := sets.New[corev1.PullPolicy]()
	for i, p := range u.AllowedPullPolicies {
		at := path.Child("allowedPullPolicies").Index(i)
		if !pullPolicies.Has(p) {
			errs = append(errs, field.NotSupported(at, p, sets.List(pullPolicies)))
		}
		if seen.Has(p) {
			errs = append(errs, field.Duplicate(at, p))
		}
		seen.Insert(p)
	}
	if u.PodTemplate != nil {
		errs = append(errs, podTemplate(u.PodTemplate, path.Child("podTemplate"))...)
	}
	return errs
}

func podTemplate(t *rukpak.UnpackPodTemplate, path *field.Path) field.ErrorList {
	errs := metav1validation.ValidateLabels(t.Labels, path.Child("labels"))
	errs = append(errs, apimachineryvalidation.ValidateAnnotations(t.Annotations, path.Child("annotations"))...)
	errs = append(errs, unreserved(t.Labels, path.Child("labels"))...)
	errs = append(errs, unreserved(t.Annotations, path.Child("annotations"))...)
	errs = append(errs, metav1validation.ValidateLabels(t.NodeSelector, path.Child("nodeSelector"))...)
	errs = append(errs, secretNames(t.ImagePullSecrets, path.Child("imagePullSecrets"))...)
	for i := range t.Tolerations {
		errs = append(errs, toleration(&t.Tolerations[i], path.Child("tolerations").Index(i))...)
	}
	if t.PriorityClassName != "" {
		errs = append(errs, subdomain(t.PriorityClassName, path.Child("priorityClassName"))...)
	}
	if t.RuntimeClassName != nil {
		errs = append(errs, subdomain(*t.RuntimeClassName, path.Child("runtimeClassName"))...)
	}
	if u := t.RunAsUser; u != nil {
		if *u == 0 {
			errs = append(errs, field.Invalid(path.Child("runAsUser"), *u, "unpack pods never run as root"))
		} else {
			for _, msg := range validation.IsValidUserID(*u) {
				errs = append(errs, field.Invalid(path.Child("runAsUser"), *u, msg))
			}
		}
	}
	if t.UserFrom != "" && !userSources.Has(t.UserFrom) {
		errs = append(errs, field.NotSupported(path.Child("userFrom"), t.UserFrom, sets.List(userSources)))
	}
	if t.RunAsUser != nil && t.UserFrom == rukpak.UserFromCluster {
		errs = append(errs, field.Forbidden(path.Child("runAsUser"), "userFrom leaves the user ID to the cluster"))
	}
	if arch, ok := t.NodeSelector[corev1.LabelArchStable]; ok {
		if _, err := platform.Parse(platform.Linux + "/" + arch); err != nil {
			errs = append(errs, field.Invalid(path.Child("nodeSelector").Key(corev1.LabelArchStable), arch, err.Error()))
		}
	}
	if r := t.Resources; r != nil {
		errs = append(errs, quantities(r.Limits, path.Child("resources", "limits"))...)
		errs = append(errs, quantities(r.Requests, path.Child("resources", "requests"))...)
		for name, request := range r.Requests {
			if limit, ok := r.Limits[name]; ok && request.Cmp(limit) > 0 {
				errs = append(errs, field.Invalid(path.Child("resources", "requests").Key(string(name)), request.String(), "must not be greater than the limit of "+limit.String()))
			}
		}
	}
	return errs
}

func unreserved(m map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for k := range m {
		if strings.HasPrefix(k, reservedPrefix) {
			errs = append(errs, field.Forbidden(path.Key(k), "the prefix "+reservedPrefix+" is reserved"))
		}
	}
	return errs
}

func toleration(t *rukpak.Toleration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if t.Key != "" {
		errs = append(errs, metav1validation.ValidateLabelName(t.Key, path.Child("key"))...)
	}
	switch t.Operator {
	case "", corev1.TolerationOpEqual:
		if t.Key == "" {
			errs = append(errs, field.Invalid(path.Child("operator"), t.Operator, "must be Exists when key is empty"))
		}
		for _, msg := range validation.IsValidLabelValue(t.Value) {
			errs = append(errs, field.Invalid(path.Child("value"), t.Value, msg))
		}
	case corev1.TolerationOpExists:
		if t.Value != "" {
			errs = append(errs, field.Invalid(path.Child("value"), t.Value, "must be empty when operator is Exists"))
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("operator"), t.Operator, []corev1.TolerationOperator{corev1.TolerationOpEqual, corev1.TolerationOpExists}))
	}
	effects := sets.New("", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)
	if !effects.Has(t.Effect) {
		errs = append(errs, field.NotSupported(path.Child("effect"), t.Effect, sets.List(effects)))
	}
	if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
		errs = append(errs, field.Invalid(path.Child("effect"), t.Effect, "must be NoExecute when tolerationSeconds is set"))
	}
	return errs
}

func quantities(m map[corev1.ResourceName]resource.Quantity, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for name, q := range m {
		for _, msg := range validation.IsQualifiedName(string(name)) {
			errs = append(errs, field.Invalid(path.Key(string(name)), name, msg))
		}
		if q.Sign() < 0 {
			errs = append(errs, field.Invalid(path.Key(string(name)), q.String(), "must not be negative"))
		}
	}
	return errs
}

func secretNames(refs []rukpak.LocalObjectReference, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, r := range refs {
		at := path.Index(i).Child("name")
		if r.Name == "" {
			errs = append(errs, field.Required(at, ""))
			continue
		}
		errs = append(errs, subdomain(r.Name, at)...)
		if seen.Has(r.Name) {
			errs = append(errs, field.Duplicate(at, r.Name))
		}
		seen.Insert(r.Name)
	}
	return errs
}

func subdomain(name string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range validation.IsDNS1123Subdomain(name) {
		errs = append(errs, field.Invalid(path, name, msg))
	}
	return errs
}
