// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package download

import "os"

// openFlags: there are none that refuse links here.
const openFlags = 0

// put closes a part and renames it: nothing is renamed here that is open.
func put(part *os.File, path string) error {
	if err := part.Close(); err != nil {
		return err
	}
	return os.Rename(part.Name(), path)
}
