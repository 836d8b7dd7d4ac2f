// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !darwin

package place

// mountPoints are not known here. On Windows what is mounted in a folder is a link, through which nothing is deleted.
func mountPoints() ([]string, error) { return nil, nil }
