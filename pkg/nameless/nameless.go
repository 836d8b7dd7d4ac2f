// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nameless makes temporary files that leave nothing behind, however the process ends.
package nameless

import "os"

// Create makes an empty file for reading and writing, as os.CreateTemp does, that is gone when it is closed. Its Name is
// the one that it had.
func Create(dir, pattern string) (*os.File, error) {
	file, err := os.CreateTemp(dir, pattern)
	if err != nil {
		return nil, err
	}
	return unlinked(file)
}
