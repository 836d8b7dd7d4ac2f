// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

var digest = "sha256:" + strings.Repeat("a", 64)

// fieldsOf returns the fields that errors name, each with its type, sorted.
func fieldsOf(errs field.ErrorList) []string {
	var fields []string
	for _, e := range errs {
		fields = append(fields, e.Field+" "+string(e.Type))
	}
	slices.Sort(fields)
	return slices.Compact(fields)
}

func image() *rukpak.Bundle {
	return &rukpak.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: "team", ResourceVersion: "1"},
		Spec: rukpak.BundleSpec{
			ProvisionerClassName: "plain", ServiceAccountName: "default",
			Source: rukpak.BundleSource{Type: rukpak.SourceTypeImage, Image: &rukpak.ImageSource{Reference: "app@" + digest, PullPolicy: "Always", Path: "/"}},
		},
	}
}

func upload() *rukpak.Bundle {
	b := image()
	b.Spec = rukpak.BundleSpec{ProvisionerClassName: "plain", Source: rukpak.BundleSource{Type: rukpak.SourceTypeUpload, Upload: &rukpak.UploadSource{}}}
	return b
}

func TestBundle(t *testing.T) {
	secrets := func(names ...string) func(*rukpak.Bundle) {
		return func(b *rukpak.Bundle) {
			for _, n := range names {
				b.Spec.ImagePullSecrets = append(b.Spec.ImagePullSecrets, rukpak.LocalObjectReference{Name: n})
			}
		}
	}
	reference := func(s string) func(*rukpak.Bundle) {
		return func(b *rukpak.Bundle) { b.Spec.Source.Image.Reference = s }
	}
	path := func(s string) func(*rukpak.Bundle) {
		return func(b *rukpak.Bundle) { b.Spec.Source.Image.Path = s }
	}
	for name, test := range map[string]struct {
		bundle func() *rukpak.Bundle
		change func(*rukpak.Bundle)
		want   []string
	}{
		"an image":                   {},
		"an upload":                  {bundle: upload},
		"no class yet":               {change: func(b *rukpak.Bundle) { b.Spec.ProvisionerClassName = "" }},
		"no service account":         {change: func(b *rukpak.Bundle) { b.Spec.ServiceAccountName = "" }},
		"a class that cannot be":     {change: func(b *rukpak.Bundle) { b.Spec.ProvisionerClassName = "No_Class" }, want: []string{"spec.provisionerClassName FieldValueInvalid"}},
		"an account that cannot be":  {change: func(b *rukpak.Bundle) { b.Spec.ServiceAccountName = "../x" }, want: []string{"spec.serviceAccountName FieldValueInvalid"}},
		"a name that cannot be":      {change: func(b *rukpak.Bundle) { b.Name = "-" }, want: []string{"metadata.name FieldValueInvalid"}},
		"no namespace":               {change: func(b *rukpak.Bundle) { b.Namespace = "" }, want: []string{"metadata.namespace FieldValueRequired"}},
		"two secrets":                {change: secrets("a", "b")},
		"a secret without a name":    {change: secrets("a", ""), want: []string{"spec.imagePullSecrets[1].name FieldValueRequired"}},
		"a secret twice":             {change: secrets("a", "b", "a"), want: []string{"spec.imagePullSecrets[2].name FieldValueDuplicate"}},
		"a secret that cannot be":    {change: secrets("A/B"), want: []string{"spec.imagePullSecrets[0].name FieldValueInvalid"}},
		"a tag":                      {change: reference("registry.example:5000/team/app:v1")},
		"a bare name":                {change: reference("app")},
		"a tag and a digest":         {change: reference("registry.example/app:v1@" + digest)},
		"an empty reference":         {change: reference("")}, // a tag of the type says required
		"a reference with a scheme":  {change: reference("https://registry.example/app"), want: []string{"spec.source.image.reference FieldValueInvalid"}},
		"a reference in capitals":    {change: reference("registry.example/App"), want: []string{"spec.source.image.reference FieldValueInvalid"}},
		"half a digest":              {change: reference("app@sha256:abc"), want: []string{"spec.source.image.reference FieldValueInvalid"}},
		"a space around a reference": {change: reference(" app:v1"), want: []string{"spec.source.image.reference FieldValueInvalid"}},
		"a newline in a reference":   {change: reference("app:v1\n"), want: []string{"spec.source.image.reference FieldValueInvalid"}},
		"no pull policy":             {change: func(b *rukpak.Bundle) { b.Spec.Source.Image.PullPolicy = "" }},
		"another pull policy":        {change: func(b *rukpak.Bundle) { b.Spec.Source.Image.PullPolicy = "Never" }},
		"an unknown pull policy":     {change: func(b *rukpak.Bundle) { b.Spec.Source.Image.PullPolicy = "always" }, want: []string{"spec.source.image.pullPolicy FieldValueNotSupported"}},
		"no path":                    {change: path("")},
		"a path":                     {change: path("/manifests/v1")},
		"the longest path":           {change: path("/" + strings.Repeat("a/", 2047) + "a")},
		"a relative path":            {change: path("manifests"), want: []string{"spec.source.image.path FieldValueInvalid"}},
		"a path that leaves":         {change: path("/../etc"), want: []string{"spec.source.image.path FieldValueInvalid"}},
		"a path that is not short":   {change: path("/a//b"), want: []string{"spec.source.image.path FieldValueInvalid"}},
		"a path with a slash at end": {change: path("/a/"), want: []string{"spec.source.image.path FieldValueInvalid"}},
		"a path that is too long":    {change: path("/" + strings.Repeat("a", 4096)), want: []string{"spec.source.image.path FieldValueTooLong"}},
		"a path with a NUL":          {change: path("/a\x00b"), want: []string{"spec.source.image.path FieldValueInvalid"}},
		"a platform":                 {change: func(b *rukpak.Bundle) { b.Spec.Source.Image.Platform = "linux/arm64" }},
		"a platform with a variant":  {change: func(b *rukpak.Bundle) { b.Spec.Source.Image.Platform = "linux/arm/v7" }},
		"an architecture alone":      {change: func(b *rukpak.Bundle) { b.Spec.Source.Image.Platform = "arm64" }, want: []string{"spec.source.image.platform FieldValueInvalid"}},
		"a platform of another OS":   {change: func(b *rukpak.Bundle) { b.Spec.Source.Image.Platform = "windows/amd64" }, want: []string{"spec.source.image.platform FieldValueInvalid"}},
		"no member":                  {change: func(b *rukpak.Bundle) { b.Spec.Source.Image = nil }}, // the union says so
		"an upload without a member": {bundle: upload, change: func(b *rukpak.Bundle) { b.Spec.Source.Upload = nil }},
		"an upload with a digest":    {bundle: upload, change: func(b *rukpak.Bundle) { b.Spec.Source.Upload.Digest = digest }},
		"an upload of half a digest": {bundle: upload, change: func(b *rukpak.Bundle) { b.Spec.Source.Upload.Digest = "sha256:abc" }, want: []string{"spec.source.upload.digest FieldValueInvalid"}},
		"a digest in capitals":       {bundle: upload, change: func(b *rukpak.Bundle) { b.Spec.Source.Upload.Digest = strings.ToUpper(digest) }, want: []string{"spec.source.upload.digest FieldValueInvalid"}},
		"an upload by an account":    {bundle: upload, change: func(b *rukpak.Bundle) { b.Spec.ServiceAccountName = "default" }, want: []string{"spec.serviceAccountName FieldValueForbidden"}},
		"an upload with secrets":     {bundle: upload, change: secrets("a"), want: []string{"spec.imagePullSecrets FieldValueForbidden"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := image()
			if test.bundle != nil {
				b = test.bundle()
			}
			if test.change != nil {
				test.change(b)
			}
			if got := fieldsOf(Bundle(b)); !slices.Equal(got, test.want) {
				t.Errorf("create: got %q, want %q", got, test.want)
			}
			if b.Name != "app" || b.Namespace != "team" || b.Spec.ProvisionerClassName == "No_Class" {
				return
			}
			if got := fieldsOf(BundleUpdate(b, b.DeepCopy())); !slices.Equal(got, test.want) {
				t.Errorf("update: got %q, want %q", got, test.want)
			}
		})
	}
}

func TestTheClassOfABundleIsSetOnce(t *testing.T) {
	for name, test := range map[string]struct {
		old, now string
		want     []string
	}{
		"kept":    {"plain", "plain", nil},
		"set":     {"", "plain", nil},
		"changed": {"plain", "raw", []string{"spec.provisionerClassName FieldValueInvalid"}},
		"removed": {"plain", "", []string{"spec.provisionerClassName FieldValueInvalid"}},
	} {
		t.Run(name, func(t *testing.T) {
			old, now := image(), image()
			old.Spec.ProvisionerClassName, now.Spec.ProvisionerClassName = test.old, test.now
			if got := fieldsOf(BundleUpdate(now, old)); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestBundleStatusUpdate(t *testing.T) {
	// Longer than such annotations may be: it is there since before there was a bound.
	asked := strings.Repeat("r", 300)
	condition := metav1.Condition{Type: "Custom", Status: metav1.ConditionTrue, Reason: "Because", LastTransitionTime: metav1.Now()}
	for name, test := range map[string]struct {
		change func(*rukpak.Bundle)
		want   []string
	}{
		"nothing":                {func(*rukpak.Bundle) {}, nil},
		"a condition":            {func(b *rukpak.Bundle) { b.Status.Conditions = []metav1.Condition{condition} }, nil},
		"a condition of no type": {func(b *rukpak.Bundle) { c := condition; c.Type = ""; b.Status.Conditions = []metav1.Condition{c} }, []string{"status.conditions[0].type FieldValueRequired"}},
		"the current generation": {func(b *rukpak.Bundle) { b.Status.ObservedGeneration = 3 }, nil},
		"one to come":            {func(b *rukpak.Bundle) { b.Status.ObservedGeneration = 4 }, []string{"status.observedGeneration FieldValueInvalid"}},
		"one before the first":   {func(b *rukpak.Bundle) { b.Status.ObservedGeneration = -1 }, []string{"status.observedGeneration FieldValueInvalid"}},
		"another UID":            {func(b *rukpak.Bundle) { b.UID = "other" }, []string{"metadata.uid FieldValueInvalid"}},
		"an echo":                {func(b *rukpak.Bundle) { b.Status.LastHandledRetry = asked }, nil},
		"another echo":           {func(b *rukpak.Bundle) { b.Status.LastHandledRefresh = asked + "!" }, nil},
		"a long echo of nothing": {func(b *rukpak.Bundle) { b.Status.LastHandledRetry = asked + "!" }, []string{"status.lastHandledRetry FieldValueTooLong"}},
	} {
		t.Run(name, func(t *testing.T) {
			old := image()
			old.Generation, old.UID = 3, "uid"
			old.Annotations = map[string]string{v1alpha1.AnnotationRetry: asked, v1alpha1.AnnotationRefresh: asked + "!"}
			b := old.DeepCopy()
			test.change(b)
			if got := fieldsOf(BundleStatusUpdate(b, old)); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestMutableReference(t *testing.T) {
	for reference, want := range map[string]bool{
		"app": true, "app:v1": true, "registry.example/app:sha256": true, "app@" + digest: false, "app:v1@" + digest: false,
	} {
		if got := MutableReference(reference); got != want {
			t.Errorf("%s: got %v, want %v", reference, got, want)
		}
	}
}
