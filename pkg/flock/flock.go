// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package flock has locks that a process holds on a file for as long as the file is open, or the process lives: flock(2). On
// systems without them it fails with errors.ErrUnsupported.
package flock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// pause is the time between two tries to get a lock that somebody has.
const pause = 20 * time.Millisecond

// ErrBusy means that another open file, of whichever process, has a lock that does not go with the one that is wanted.
var ErrBusy = errors.New("somebody else has the lock")

// Kind is how a lock goes with others.
type Kind bool

const (
	// Shared goes with other shared ones.
	Shared Kind = false
	// Exclusive goes with none.
	Exclusive Kind = true
)

// TryOpen opens the file at a path, which it makes, and locks it until it is closed. It does not wait: the error is ErrBusy
// where somebody has it. The file may be removed by whoever has it alone.
// A symbolic link at the path is not followed, and an error.
func TryOpen(path string, kind Kind) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|noFollow, 0o600)
		if err != nil {
			return nil, err
		}
		if err := Try(f, kind); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		same, err := IsAt(f, path)
		if err == nil && same {
			return f, nil
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
}

// IsAt reports whether an open file is the one at a path: between opening and locking somebody may have renamed or removed it, and
// then what was locked is nobody's.
func IsAt(f *os.File, path string) (bool, error) {
	opened, err := f.Stat()
	if err != nil {
		return false, err
	}
	now, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(opened, now), err
}

// Open does as TryOpen, and waits until it gets the lock or ctx ends.
func Open(ctx context.Context, path string, kind Kind) (*os.File, error) {
	for {
		f, err := TryOpen(path, kind)
		if !errors.Is(err, ErrBusy) {
			return f, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("lock %s: %w (%w)", path, context.Cause(ctx), err)
		}
	}
}
