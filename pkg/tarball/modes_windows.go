// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

// KeepsModes reports whether the file systems of this system have permissions. Those of Windows have others: what Go makes of
// them is 0777 for a directory, and 0666 or 0444 for a file, whether it can be run or not.
const KeepsModes = false
