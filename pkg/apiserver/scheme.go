// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apiserver assembles the API server: the group rukpak.io over the generic server of
// k8s.io/apiserver, and what is special about its requests.
package apiserver

import (
	"slices"

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
	// Serializer is what clients can choose from.
	Serializer runtime.NegotiatedSerializer = textSerializer{Codecs}
)

// textSerializer offers JSON and YAML alone. The types have no protobuf encoding, and a client that prefers
// protobuf but takes JSON, as the namespace controller is, would get an error in place of JSON.
type textSerializer struct {
	runtime.NegotiatedSerializer
}

// SupportedMediaTypes are what objects can be read and written as.
func (s textSerializer) SupportedMediaTypes() []runtime.SerializerInfo {
	return slices.DeleteFunc(slices.Clone(s.NegotiatedSerializer.SupportedMediaTypes()), func(info runtime.SerializerInfo) bool {
		return info.MediaType != runtime.ContentTypeJSON && info.MediaType != runtime.ContentTypeYAML
	})
}

func init() {
	install.Install(Scheme)
	// The generic server decodes its own options and answers with these types in the version v1 of no group.
	v1 := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(Scheme, v1)
	Scheme.AddUnversionedTypes(v1, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
}
