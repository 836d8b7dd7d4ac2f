// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import "golang.org/x/sys/unix"

// isMount reports whether something is mounted at a folder, which nothing can be put in the place of then. Kernels
// before 5.8 do not say.
func isMount(path string) bool {
	var info unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_NO_AUTOMOUNT, 0, &info)
	return err == nil && info.Attributes_mask&info.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}
