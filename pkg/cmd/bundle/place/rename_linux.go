// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// rename renames to where nothing is: renameat2(2).
func rename(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	switch {
	case err == nil:
		return nil
	case unknown(err):
		return renameWhereNothingIs(from, to)
	}
	return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
}

// exchange exchanges two paths in one step. The error is errors.ErrUnsupported where the file system or the kernel cannot.
func exchange(a, b string) error {
	err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	switch {
	case err == nil:
		return nil
	case unknown(err):
		err = errors.ErrUnsupported
	}
	return &os.LinkError{Op: "exchange", Old: a, New: b, Err: err}
}

// unknown reports whether a flag is not known to the kernel, or to the file system.
func unknown(err error) bool {
	return errors.Is(err, errors.ErrUnsupported) || errors.Is(err, unix.EINVAL)
}
