// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package provisionerclass

import (
	"context"
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/install"
)

func testStrategy() strategy {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return newStrategy(scheme, sets.New("default", "bucket"))
}

func request(ctx context.Context) context.Context {
	ctx = genericapirequest.WithNamespace(ctx, metav1.NamespaceNone)
	return genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{
		IsResourceRequest: true, APIGroup: rukpak.GroupName, APIVersion: "v1alpha1", Resource: "provisionerclasses",
	})
}

func class() *rukpak.ProvisionerClass {
	return &rukpak.ProvisionerClass{
		ObjectMeta:  metav1.ObjectMeta{Name: "plain", UID: "uid", ResourceVersion: "7", Generation: 1, CreationTimestamp: metav1.Now()},
		Provisioner: "rukpak.io/plain", Store: "default",
		Unpack: &rukpak.UnpackPolicy{Mode: rukpak.UnpackModeAuto, TimeoutSeconds: ptr.To[int32](600), AllowedPullPolicies: []corev1.PullPolicy{corev1.PullAlways}},
		Limits: &rukpak.ContentLimits{CompressedBytes: ptr.To(resource.MustParse("1Mi")), Bytes: ptr.To(resource.MustParse("2Mi")), Files: ptr.To[int64](3)},
	}
}

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

func TestValidationAtCreate(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*rukpak.ProvisionerClass)
		want   []string
	}{
		"good":          {change: func(*rukpak.ProvisionerClass) {}},
		"another store": {change: func(c *rukpak.ProvisionerClass) { c.Store = "bucket" }},
		"foreign": {change: func(c *rukpak.ProvisionerClass) {
			c.Provisioner, c.Parameters = "example.com/mine", map[string]string{"a": "b"}
		}},
		"no provisioner":     {change: func(c *rukpak.ProvisionerClass) { c.Provisioner = "" }, want: []string{"provisioner FieldValueRequired"}},
		"a store unheard of": {change: func(c *rukpak.ProvisionerClass) { c.Store = "attic" }, want: []string{"store FieldValueNotSupported"}},
		"unknown mode":       {change: func(c *rukpak.ProvisionerClass) { c.Unpack.Mode = "Magic" }, want: []string{"unpack.mode FieldValueNotSupported"}},
		"bad name":           {change: func(c *rukpak.ProvisionerClass) { c.Name = "Not_Good" }, want: []string{"metadata.name FieldValueInvalid"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := class()
			c.Generation = 9
			test.change(c)
			if got := causes(t, rest.BeforeCreate(testStrategy(), request(t.Context()), c)); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if c.Generation != 1 {
				t.Errorf("generation %d, want 1", c.Generation)
			}
		})
	}
}

func TestUpdate(t *testing.T) {
	for name, test := range map[string]struct {
		change     func(*rukpak.ProvisionerClass)
		want       []string
		generation int64
	}{
		"nothing":             {change: func(*rukpak.ProvisionerClass) {}, generation: 1},
		"annotations":         {change: func(c *rukpak.ProvisionerClass) { c.Annotations = map[string]string{"a": "b"} }, generation: 1},
		"the generation":      {change: func(c *rukpak.ProvisionerClass) { c.Generation = 9 }, generation: 1},
		"the same quantity":   {change: func(c *rukpak.ProvisionerClass) { c.Limits.Bytes = ptr.To(resource.MustParse("2048Ki")) }, generation: 1},
		"limits":              {change: func(c *rukpak.ProvisionerClass) { c.Limits.Files = ptr.To[int64](9) }, generation: 2},
		"mode":                {change: func(c *rukpak.ProvisionerClass) { c.Unpack.Mode = rukpak.UnpackModeImageCopy }, generation: 2},
		"history":             {change: func(c *rukpak.ProvisionerClass) { c.RevisionHistoryLimit = ptr.To[int32](0) }, generation: 2},
		"another provisioner": {change: func(c *rukpak.ProvisionerClass) { c.Provisioner = "rukpak.io/raw" }, want: []string{"provisioner FieldValueInvalid"}, generation: 2},
		"another store":       {change: func(c *rukpak.ProvisionerClass) { c.Store = "bucket" }, want: []string{"store FieldValueInvalid"}, generation: 2},
		"unknown mode":        {change: func(c *rukpak.ProvisionerClass) { c.Unpack.Mode = "Magic" }, want: []string{"unpack.mode FieldValueNotSupported"}, generation: 2},
		"parameters":          {change: func(c *rukpak.ProvisionerClass) { c.Parameters = map[string]string{"a": "b"} }, want: []string{"parameters FieldValueInvalid"}, generation: 2},
	} {
		t.Run(name, func(t *testing.T) {
			old := class()
			c := old.DeepCopy()
			test.change(c)
			if got := causes(t, rest.BeforeUpdate(testStrategy(), request(t.Context()), c, old)); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if c.Generation != test.generation {
				t.Errorf("generation %d, want %d", c.Generation, test.generation)
			}
		})
	}
}

func TestTable(t *testing.T) {
	byDefault := class()
	byDefault.Annotations = map[string]string{"rukpak.io/is-default-class": "true"}
	bare := &rukpak.ProvisionerClass{ObjectMeta: metav1.ObjectMeta{Name: "bare"}, Provisioner: "example.com/mine"}
	for name, test := range map[string]struct {
		class *rukpak.ProvisionerClass
		want  map[string]string
	}{
		"the default": {byDefault, map[string]string{"Name": "plain (default)", "Provisioner": "rukpak.io/plain", "Store": "default", "Mode": "Auto", "Compressed": "1Mi", "Uncompressed": "2Mi", "Files": "3"}},
		"another":     {class(), map[string]string{"Name": "plain"}},
		"a bare one":  {bare, map[string]string{"Name": "bare", "Mode": "", "Compressed": "", "Uncompressed": "", "Files": "", "Age": "<unknown>"}},
	} {
		t.Run(name, func(t *testing.T) {
			printed, err := table{}.ConvertToTable(t.Context(), test.class, nil)
			if err != nil {
				t.Fatal(err)
			}
			cells := printed.Rows[0].Cells
			if len(printed.Rows) != 1 || len(cells) != len(columns) {
				t.Fatalf("%d rows with %d cells", len(printed.Rows), len(cells))
			}
			for i, c := range columns {
				if w, ok := test.want[c.Name]; ok && cells[i] != w {
					t.Errorf("%s: got %v, want %q", c.Name, cells[i], w)
				}
			}
		})
	}
	if _, err := row(&rukpak.Bundle{}); err == nil {
		t.Error("a bundle is printed as a class")
	}
	bareTable, err := table{}.ConvertToTable(t.Context(), class(), &metav1.TableOptions{NoHeaders: true})
	if err != nil || len(bareTable.ColumnDefinitions) != 0 || len(bareTable.Rows) != 1 {
		t.Errorf("without headers: %+v, %v", bareTable, err)
	}
}
