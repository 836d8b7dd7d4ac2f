// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package flock

import (
	"errors"
	"os"
)

// noFollow is nothing there: no lock is had of what is opened.
const noFollow = 0

// Try fails where there are no such locks.
func Try(f *os.File, _ Kind) error {
	return &os.PathError{Op: "lock", Path: f.Name(), Err: errors.ErrUnsupported}
}
