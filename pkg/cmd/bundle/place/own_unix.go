// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package place

import (
	"io/fs"
	"os"
	"syscall"
)

// own reports whether a folder is the user's: in a folder where everybody may write somebody else could have made it.
func own(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}
