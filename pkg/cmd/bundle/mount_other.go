// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package bundle

// isMount reports whether something is mounted at a folder. That is not known here: an empty folder is filled all the same, and
// one with files in it is not replaced, since renaming it fails.
func isMount(string) bool { return false }
