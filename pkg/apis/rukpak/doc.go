// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rukpak holds the internal version of the API group rukpak.io: what the server works with,
// whatever version a client speaks. The fields are described in the versioned packages.
//
// +k8s:deepcopy-gen=package
// +groupName=rukpak.io
package rukpak
