// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package nameless

import (
	"errors"
	"os"
)

// unlinked returns an empty file that is gone when it is closed, be it by the end of the process, in place of another.
func unlinked(file *os.File) (*os.File, error) {
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
