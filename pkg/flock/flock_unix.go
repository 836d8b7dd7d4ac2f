// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package flock

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// noFollow keeps opening a file from following a symbolic link.
const noFollow = unix.O_NOFOLLOW

// Try takes or changes the lock of an open file or folder. It does not wait: the error is ErrBusy where somebody else has
// it.
func Try(f *os.File, kind Kind) error {
	how := unix.LOCK_SH
	if kind == Exclusive {
		how = unix.LOCK_EX
	}
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return ErrBusy
		default:
			return &os.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
	}
}
