// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package filesystem

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"rukpak.io/apiserver/pkg/content"
)

// Bounds of the space that is left free for others on the same disk.
const (
	maxReserve   = 512 << 20
	reserveShare = 20 // one part of so many
)

// Room returns an error where more content would take the space that is kept free.
func (s *Store) Room(ctx context.Context) error {
	free, total, err := s.Space(ctx)
	if err != nil {
		return err
	}
	if reserve := min(total/reserveShare, maxReserve); free < reserve {
		return fmt.Errorf("%w: of the volume %d bytes are free, and %d are kept so", content.ErrNoSpace, free, reserve)
	}
	return nil
}

// Space returns how many bytes this process may still write to the disk of the
// folder, and how many the disk has. Others write to the same disk, so a write can
// still end in content.ErrNoSpace.
func (s *Store) Space(context.Context) (free, total int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.root, &st); err != nil {
		return 0, 0, fmt.Errorf("space of content folder %s: %w", s.root, err)
	}
	return int64(st.Bavail) * int64(st.Bsize), int64(st.Blocks) * int64(st.Bsize), nil
}

// Shared reports that a folder belongs to one process.
func (s *Store) Shared() bool { return false }
