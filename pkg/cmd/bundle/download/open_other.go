// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package download

// openFlags: there are none that refuse links here.
const openFlags = 0
