// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package place

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// mountPoints are where something is mounted: getfsstat(2).
func mountPoints() ([]string, error) {
	n, err := unix.Getfsstat(nil, unix.MNT_NOWAIT)
	if err != nil {
		return nil, fmt.Errorf("see what is mounted: %w", err)
	}
	// Some may have come meanwhile.
	mounted := make([]unix.Statfs_t, n+16)
	if n, err = unix.Getfsstat(mounted, unix.MNT_NOWAIT); err != nil {
		return nil, fmt.Errorf("see what is mounted: %w", err)
	}
	points := make([]string, n)
	for i := range points {
		points[i] = unix.ByteSliceToString(mounted[i].Mntonname[:])
	}
	return points, nil
}
