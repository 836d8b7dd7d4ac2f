// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package tarball

// KeepsModes reports whether the file systems of this system have permissions.
const KeepsModes = true
