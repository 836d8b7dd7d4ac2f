// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the version v1alpha1 of the API group rukpak.io. It imports nothing of an
// API server, so that clients stay light.
//
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=io.rukpak.apiserver.pkg.apis.rukpak.v1alpha1
// +k8s:deepcopy-gen=package
// +k8s:conversion-gen=rukpak.io/apiserver/pkg/apis/rukpak
// +k8s:defaulter-gen=TypeMeta
// +k8s:validation-gen=TypesWithField=TypeMeta
// +groupName=rukpak.io
package v1alpha1
