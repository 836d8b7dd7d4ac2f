// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apiserver assembles the API server: the group rukpak.io over the generic server of
// k8s.io/apiserver, and what is special about its requests.
package apiserver

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"rukpak.io/apiserver/pkg/apis/rukpak/install"
)

var (
	// Scheme knows the types that the server serves.
	Scheme = runtime.NewScheme()
	// Codecs reads and writes them.
	Codecs = serializer.NewCodecFactory(Scheme)
)

func init() {
	install.Install(Scheme)
	// The generic server decodes its own options and answers with these types in the version v1 of no group.
	v1 := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(Scheme, v1)
	Scheme.AddUnversionedTypes(v1, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
}
