// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/apitesting/roundtrip"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/yaml"

	rukpakfuzzer "rukpak.io/apiserver/pkg/apis/rukpak/fuzzer"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// TestRoundTrip fills every type with random values and takes it through every version and encoding.
func TestRoundTrip(t *testing.T) {
	roundtrip.RoundTripTestForAPIGroup(t, Install, fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, rukpakfuzzer.Funcs))
}

// TestStoredFiles reads the files of an earlier day, and writes them as they were: no field has got another
// name, type or place, or been lost. A field that is new belongs into the files.
func TestStoredFiles(t *testing.T) {
	scheme := runtime.NewScheme()
	Install(scheme)
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	for _, object := range []runtime.Object{&v1alpha1.Bundle{}, &v1alpha1.ProvisionerClass{}} {
		kind := reflect.TypeOf(object).Elem().Name()
		t.Run(kind, func(t *testing.T) {
			want, err := os.ReadFile(filepath.Join("testdata", "v1alpha1", kind+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			internal, _, err := codecs.UniversalDecoder().Decode(want, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := scheme.Convert(internal, object, nil); err != nil {
				t.Fatal(err)
			}
			object.GetObjectKind().SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind(kind))
			got, err := yaml.Marshal(object)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != string(want) {
				t.Errorf("the file has become:\n%s", got)
			}
			for _, empty := range emptyFields(reflect.ValueOf(object).Elem(), "") {
				t.Errorf("field %s is not in the file", empty)
			}
		})
	}
}

// emptyFields lists the fields of our own types that have no value.
func emptyFields(v reflect.Value, path string) []string {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return []string{path}
		}
		return emptyFields(v.Elem(), path)
	case reflect.Slice:
		if v.Len() == 0 {
			return []string{path}
		}
		return emptyFields(v.Index(0), path)
	case reflect.Struct:
		if v.Type().PkgPath() != reflect.TypeFor[v1alpha1.Bundle]().PkgPath() {
			return nil
		}
		var empty []string
		for i := range v.NumField() {
			empty = append(empty, emptyFields(v.Field(i), path+"."+v.Type().Field(i).Name)...)
		}
		return empty
	}
	if v.IsZero() {
		return []string{path}
	}
	return nil
}
