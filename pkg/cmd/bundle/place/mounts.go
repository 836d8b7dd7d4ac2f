// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package place

import (
	"os"
	"slices"
	"strings"
)

// mounts are where something is mounted, of a path that no symbolic link leads to and what is below it.
func mounts(path string) ([]string, error) {
	points, err := mountPoints()
	return slices.DeleteFunc(points, func(point string) bool {
		return point != path && !strings.HasPrefix(point, path+string(os.PathSeparator))
	}), err
}

// isMount reports whether something is mounted at a folder, which nothing can be put in the place of then. Where that cannot be known, renaming
// it fails.
func isMount(path string) bool {
	mounted, err := mounts(path)
	return err == nil && slices.Contains(mounted, path)
}
