// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package diskfull tells the errors of a disk that has no room from others.
package diskfull

import (
	"errors"
	"syscall"
)

// Is reports whether an error is that of a disk, or of a quota of one, that is full.
func Is(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
