// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// causes returns the fields that an error of validation names, each with its type, sorted.
func causes(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	var status *apierrors.StatusError
	if !errors.As(err, &status) || !apierrors.IsInvalid(err) {
		t.Fatalf("got %v, want an error of validation", err)
	}
	var fields []string
	for _, c := range status.ErrStatus.Details.Causes {
		fields = append(fields, c.Field+" "+string(c.Type))
	}
	slices.Sort(fields)
	return slices.Compact(fields)
}

// secrets are n names of pull secrets.
func secrets(n int) []rukpak.LocalObjectReference {
	refs := make([]rukpak.LocalObjectReference, n)
	for i := range refs {
		refs[i].Name = fmt.Sprint("secret-", i)
	}
	return refs
}

// The rules that are tags on the types, and those in code, by the whole way of a create.
func TestValidationAtCreate(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*rukpak.Bundle)
		want   []string
	}{
		"good":             {change: func(*rukpak.Bundle) {}},
		"without a class":  {change: func(b *rukpak.Bundle) { b.Spec.ProvisionerClassName = "" }},
		"an upload":        {change: func(b *rukpak.Bundle) { b.Spec = uploadBundle("").Spec }},
		"longest image":    {change: func(b *rukpak.Bundle) { b.Spec.Source.Image.Reference = long(255) + "@" + digestA }},
		"most secrets":     {change: func(b *rukpak.Bundle) { b.Spec.ImagePullSecrets = secrets(16) }},
		"too many secrets": {change: func(b *rukpak.Bundle) { b.Spec.ImagePullSecrets = secrets(17) }, want: []string{"spec.imagePullSecrets FieldValueTooMany"}},
		"no type":          {change: func(b *rukpak.Bundle) { b.Spec.Source.Type = "" }, want: []string{"spec.source.image FieldValueInvalid", "spec.source.type FieldValueRequired"}},
		"unknown type":     {change: func(b *rukpak.Bundle) { b.Spec.Source = rukpak.BundleSource{Type: "Git"} }, want: []string{"spec.source.type FieldValueNotSupported"}},
		"no member":        {change: func(b *rukpak.Bundle) { b.Spec.Source.Image = nil }, want: []string{"spec.source.image FieldValueInvalid"}},
		"the other member": {change: func(b *rukpak.Bundle) { b.Spec.Source.Type = rukpak.SourceTypeUpload; b.Spec.ServiceAccountName = "" }, want: []string{"spec.source.image FieldValueInvalid", "spec.source.upload FieldValueInvalid"}},
		"both members":     {change: func(b *rukpak.Bundle) { b.Spec.Source.Upload = &rukpak.UploadSource{} }, want: []string{"spec.source.upload FieldValueInvalid"}},
		"no reference":     {change: func(b *rukpak.Bundle) { b.Spec.Source.Image.Reference = "" }, want: []string{"spec.source.image.reference FieldValueRequired"}},
		"long reference": {change: func(b *rukpak.Bundle) {
			b.Spec.Source.Image.Reference = "registry.example/a:" + strings.Repeat("b", 1024)
		}, want: []string{
			"spec.source.image.reference FieldValueInvalid", "spec.source.image.reference FieldValueTooLong",
		}},
		"the shortest interval": {change: func(b *rukpak.Bundle) { b.Spec.RefreshIntervalSeconds = ptr.To[int32](30) }},
		"the longest interval":  {change: func(b *rukpak.Bundle) { b.Spec.RefreshIntervalSeconds = ptr.To[int32](2592000) }},
		"too short an interval": {change: func(b *rukpak.Bundle) { b.Spec.RefreshIntervalSeconds = ptr.To[int32](29) }, want: []string{"spec.refreshIntervalSeconds FieldValueInvalid"}},
		"too long an interval":  {change: func(b *rukpak.Bundle) { b.Spec.RefreshIntervalSeconds = ptr.To[int32](2592001) }, want: []string{"spec.refreshIntervalSeconds FieldValueInvalid"}},
		"an upload with interval": {change: func(b *rukpak.Bundle) {
			b.Spec = uploadBundle("").Spec
			b.Spec.RefreshIntervalSeconds = ptr.To[int32](60)
		}, want: []string{"spec.refreshIntervalSeconds FieldValueForbidden"}},
		"the longest requests": {change: func(b *rukpak.Bundle) { b.Annotations = requests(256) }},
		"too long requests": {change: func(b *rukpak.Bundle) { b.Annotations = requests(257) }, want: []string{
			"metadata.annotations[rukpak.io/refresh] FieldValueTooLong", "metadata.annotations[rukpak.io/retry] FieldValueTooLong",
		}},
		"no name":             {change: func(b *rukpak.Bundle) { b.Name = "" }, want: []string{"metadata.name FieldValueRequired"}},
		"bad name":            {change: func(b *rukpak.Bundle) { b.Name = "Not_Good" }, want: []string{"metadata.name FieldValueInvalid"}},
		"a wrong pull policy": {change: func(b *rukpak.Bundle) { b.Spec.Source.Image.PullPolicy = "Sometimes" }, want: []string{"spec.source.image.pullPolicy FieldValueNotSupported"}},
		"everything at once": {change: func(b *rukpak.Bundle) {
			b.Spec.ServiceAccountName, b.Spec.ProvisionerClassName, b.Spec.Source.Image.Path = "A B", "C D", "relative"
		}, want: []string{"spec.provisionerClassName FieldValueInvalid", "spec.serviceAccountName FieldValueInvalid", "spec.source.image.path FieldValueInvalid"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := imageBundle("app")
			b.UID, b.CreationTimestamp = "uid", metav1.Now()
			test.change(b)
			if got := causes(t, rest.BeforeCreate(testStrategy(), asClient(t.Context(), "jane", ""), b)); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// requests are the annotations that ask for something, with values of n bytes.
func requests(n int) map[string]string {
	return map[string]string{v1alpha1.AnnotationRetry: strings.Repeat("r", n), v1alpha1.AnnotationRefresh: strings.Repeat("f", n)}
}

// long is a repository with a path of n characters.
func long(n int) string { return "registry.example/" + strings.Repeat("a", n-len("registry.example/")) }

func TestValidationAtUpdate(t *testing.T) {
	for name, test := range map[string]struct {
		old    func(*rukpak.Bundle)
		change func(*rukpak.Bundle)
		want   []string
	}{
		"good":                   {change: func(b *rukpak.Bundle) { b.Spec.Suspend = true }},
		"another source":         {change: func(b *rukpak.Bundle) { b.Spec = uploadBundle("").Spec }},
		"a class where was none": {old: func(b *rukpak.Bundle) { b.Spec.ProvisionerClassName = "" }, change: func(b *rukpak.Bundle) { b.Spec.ProvisionerClassName = "raw" }},
		"another class":          {change: func(b *rukpak.Bundle) { b.Spec.ProvisionerClassName = "raw" }, want: []string{"spec.provisionerClassName FieldValueInvalid"}},
		"no class any more":      {change: func(b *rukpak.Bundle) { b.Spec.ProvisionerClassName = "" }, want: []string{"spec.provisionerClassName FieldValueInvalid"}},
		"both members":           {change: func(b *rukpak.Bundle) { b.Spec.Source.Upload = &rukpak.UploadSource{} }, want: []string{"spec.source.upload FieldValueInvalid"}},
		"no reference":           {change: func(b *rukpak.Bundle) { b.Spec.Source.Image.Reference = "" }, want: []string{"spec.source.image.reference FieldValueRequired"}},
		"unknown type":           {change: func(b *rukpak.Bundle) { b.Spec.Source = rukpak.BundleSource{Type: "Git"} }, want: []string{"spec.source.type FieldValueNotSupported"}},
		"a too long request": {change: func(b *rukpak.Bundle) { b.Annotations = requests(257) }, want: []string{
			"metadata.annotations[rukpak.io/refresh] FieldValueTooLong", "metadata.annotations[rukpak.io/retry] FieldValueTooLong",
		}},
		"a too long request that was there": {
			old:    func(b *rukpak.Bundle) { b.Annotations = requests(100000) },
			change: func(b *rukpak.Bundle) { b.Spec.Suspend = true },
		},
		"a too long request that is another now": {
			old:    func(b *rukpak.Bundle) { b.Annotations = requests(300) },
			change: func(b *rukpak.Bundle) { b.Annotations[v1alpha1.AnnotationRetry] = strings.Repeat("x", 300) },
			want:   []string{"metadata.annotations[rukpak.io/retry] FieldValueTooLong"},
		},
		"a too long request that goes": {old: func(b *rukpak.Bundle) { b.Annotations = requests(300) }, change: func(b *rukpak.Bundle) { b.Annotations = nil }},
		"too many secrets that were there": {
			old:    func(b *rukpak.Bundle) { b.Spec.ImagePullSecrets = secrets(18) },
			change: func(b *rukpak.Bundle) { b.Spec.ImagePullSecrets = secrets(17) },
		},
		"more secrets": {
			old:    func(b *rukpak.Bundle) { b.Spec.ImagePullSecrets = secrets(17) },
			change: func(b *rukpak.Bundle) { b.Spec.ImagePullSecrets = secrets(18) },
			want:   []string{"spec.imagePullSecrets FieldValueTooMany"},
		},
		"another UID": {change: func(b *rukpak.Bundle) { b.UID = "other" }, want: []string{"metadata.uid FieldValueInvalid"}},
	} {
		t.Run(name, func(t *testing.T) {
			old := stored(imageBundle("app"))
			if test.old != nil {
				test.old(old)
			}
			b := old.DeepCopy()
			test.change(b)
			if got := causes(t, rest.BeforeUpdate(testStrategy(), asClient(t.Context(), "jane", ""), b, old)); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestValidationOfTheStatus(t *testing.T) {
	good := metav1.Condition{Type: "Custom", Status: metav1.ConditionTrue, Reason: "Because", LastTransitionTime: metav1.Now()}
	condition := func(kind string, change func(*metav1.Condition)) metav1.Condition {
		c := good
		c.Type = kind
		if change != nil {
			change(&c)
		}
		return c
	}
	message := func(n int) func(*metav1.Condition) {
		return func(c *metav1.Condition) { c.Message = strings.Repeat("m", n) }
	}
	reason := func(n int) func(*metav1.Condition) {
		return func(c *metav1.Condition) { c.Reason = strings.Repeat("r", n) }
	}
	add := func(all ...metav1.Condition) func(*rukpak.BundleStatus) {
		return func(s *rukpak.BundleStatus) { s.Conditions = append(s.Conditions, all...) }
	}
	many := func(n int) func(*rukpak.BundleStatus) {
		return func(s *rukpak.BundleStatus) {
			for i := range n {
				s.Conditions = append(s.Conditions, condition(fmt.Sprint("Custom", i), nil))
			}
		}
	}
	// escaped are conditions that JSON makes six times as long.
	escaped := func(n int) []metav1.Condition {
		var all []metav1.Condition
		for i := range n {
			all = append(all, condition(fmt.Sprint("Custom", i), func(c *metav1.Condition) { c.Message = strings.Repeat("<", 32768) }))
		}
		return all
	}
	for name, test := range map[string]struct {
		old    func(*rukpak.BundleStatus)
		change func(*rukpak.BundleStatus)
		want   []string
	}{
		"the longest condition":    {change: add(condition(strings.Repeat("d", 253)+"/"+strings.Repeat("t", 63), message(32768)), condition("B", reason(1024)))},
		"too long a type":          {change: add(condition(strings.Repeat("d", 253)+"/"+strings.Repeat("t", 64), nil)), want: []string{"status.conditions[5].type FieldValueInvalid"}},
		"too long a reason":        {change: add(condition("A", reason(1025))), want: []string{"status.conditions[5].reason FieldValueTooLong"}},
		"too long a message":       {change: add(condition("A", message(32769))), want: []string{"status.conditions[5].message FieldValueTooLong"}},
		"one of those":             {change: add(condition("A", nil), condition("B", message(32769))), want: []string{"status.conditions[6].message FieldValueTooLong"}},
		"what was too long before": {old: add(condition("A", message(40000))), change: add(condition("B", nil))},
		"what was too long and is changed": {
			old:    add(condition("A", message(40000))),
			change: func(s *rukpak.BundleStatus) { message(40001)(&s.Conditions[5]) },
			want:   []string{"status.conditions[5].message FieldValueTooLong"},
		},
		"the most conditions":     {change: many(32)},
		"too many conditions":     {change: many(33), want: []string{"status.conditions FieldValueTooMany"}},
		"too many before":         {old: many(40), change: func(s *rukpak.BundleStatus) { message(1)(&s.Conditions[5]) }},
		"more than too many":      {old: many(40), change: add(condition("A", nil)), want: []string{"status.conditions FieldValueTooMany"}},
		"too many and one's own":  {old: many(40), change: func(s *rukpak.BundleStatus) { conditions.SetStorageFull(&s.Conditions, 1, true) }},
		"too long an echo":        {change: func(s *rukpak.BundleStatus) { s.LastHandledRetry = strings.Repeat("r", 257) }, want: []string{"status.lastHandledRetry FieldValueTooLong"}},
		"too long another echo":   {change: func(s *rukpak.BundleStatus) { s.LastHandledRefresh = strings.Repeat("r", 257) }, want: []string{"status.lastHandledRefresh FieldValueTooLong"}},
		"as much as there may be": {change: add(escaped(2)...)},
		"more than there may be":  {change: add(escaped(3)...), want: []string{"status.conditions FieldValueTooLong"}},
		"more than that before":   {old: add(escaped(8)...), change: func(s *rukpak.BundleStatus) { s.Conditions[5].Message = "" }},
		"an echo from before":     {old: func(s *rukpak.BundleStatus) { s.LastHandledRetry = strings.Repeat("r", 257) }, change: func(s *rukpak.BundleStatus) { s.LastHandledRefresh = "1" }},
		"good":                    {change: func(s *rukpak.BundleStatus) { s.Conditions = append(s.Conditions, good) }},
		"a condition twice":       {change: func(s *rukpak.BundleStatus) { s.Conditions = []metav1.Condition{good, good} }, want: []string{"status.conditions[1] FieldValueDuplicate"}},
		"no reason":               {change: func(s *rukpak.BundleStatus) { c := good; c.Reason = ""; s.Conditions = []metav1.Condition{c} }, want: []string{"status.conditions[0].reason FieldValueRequired"}},
		"a status of its own":     {change: func(s *rukpak.BundleStatus) { c := good; c.Status = "Perhaps"; s.Conditions = []metav1.Condition{c} }, want: []string{"status.conditions[0].status FieldValueNotSupported"}},
		"generation to come":      {change: func(s *rukpak.BundleStatus) { s.ObservedGeneration = 2 }, want: []string{"status.observedGeneration FieldValueInvalid"}},
		"negative generation":     {change: func(s *rukpak.BundleStatus) { s.ObservedGeneration = -1 }, want: []string{"status.observedGeneration FieldValueInvalid"}},
		"a mode that is unknown":  {change: func(s *rukpak.BundleStatus) { s.Unpack.Mode = "Magic" }, want: []string{"status.unpack.mode FieldValueNotSupported"}},
	} {
		t.Run(name, func(t *testing.T) {
			old := stored(imageBundle("app"))
			if test.old != nil {
				test.old(&old.Status)
			}
			b := old.DeepCopy()
			test.change(&b.Status)
			err := rest.BeforeUpdate(testStatusStrategy(), asClient(t.Context(), "system:apiserver", "status"), b, old)
			if got := causes(t, err); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
