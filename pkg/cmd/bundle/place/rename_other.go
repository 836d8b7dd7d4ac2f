// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package place

import (
	"errors"
	"os"
)

// rename renames to where nothing is.
func rename(from, to string) error { return renameWhereNothingIs(from, to) }

// exchange is not known here.
func exchange(a, b string) error {
	return &os.LinkError{Op: "exchange", Old: a, New: b, Err: errors.ErrUnsupported}
}
