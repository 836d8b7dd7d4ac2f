// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fuzzer fills the types of the API with random values, for tests of their conversion.
package fuzzer

import (
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/randfill"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// Funcs fill in what defaulting would, so that it does not look like a loss.
func Funcs(serializer.CodecFactory) []any {
	return []any{
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewQuantity(c.Int63n(1<<40)+1, resource.BinarySI)
			// What a quantity looks like is cached; a decoded one has the cache.
			_ = q.String()
		},
		func(c *rukpak.ProvisionerClass, r randfill.Continue) {
			r.FillNoCustom(c)
			v := &v1alpha1.ProvisionerClass{}
			if err := v1alpha1.Convert_rukpak_ProvisionerClass_To_v1alpha1_ProvisionerClass(c, v, nil); err != nil {
				panic(err)
			}
			v1alpha1.SetDefaults_ProvisionerClass(v)
			if err := v1alpha1.Convert_v1alpha1_ProvisionerClass_To_rukpak_ProvisionerClass(v, c, nil); err != nil {
				panic(err)
			}
		},
		func(b *rukpak.Bundle, r randfill.Continue) {
			r.FillNoCustom(b)
			v := &v1alpha1.Bundle{}
			if err := v1alpha1.Convert_rukpak_Bundle_To_v1alpha1_Bundle(b, v, nil); err != nil {
				panic(err)
			}
			v1alpha1.SetDefaults_Bundle(v)
			if err := v1alpha1.Convert_v1alpha1_Bundle_To_rukpak_Bundle(v, b, nil); err != nil {
				panic(err)
			}
		},
	}
}
