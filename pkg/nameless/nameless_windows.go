// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package nameless

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// unlinked returns an empty file that is gone when it is closed, be it by the end of the process, in place of another. Windows
// takes no name from a file that is open, but deletes one at its end that was opened for that.
func unlinked(file *os.File) (*os.File, error) {
	if err := file.Close(); err != nil {
		return nil, errors.Join(err, os.Remove(file.Name()))
	}
	again, err := os.OpenFile(file.Name(), os.O_RDWR|windows.FILE_FLAG_DELETE_ON_CLOSE, 0)
	if err != nil {
		return nil, errors.Join(err, os.Remove(file.Name()))
	}
	return again, nil
}
