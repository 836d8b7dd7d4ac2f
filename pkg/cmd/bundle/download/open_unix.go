// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package download

import (
	"errors"
	"os"
	"syscall"
)

// openFlags refuse a symbolic link, and do not wait for the other end of a pipe.
const openFlags = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// put renames a part while its lock is held, so that nobody takes it for one that is under way, and closes it.
func put(part *os.File, path string) error {
	return errors.Join(os.Rename(part.Name(), path), part.Close())
}
