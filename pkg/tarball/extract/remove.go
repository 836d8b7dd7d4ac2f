// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package extract

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Remove removes a folder with all that is in it, directories that keep their owner out included.
func Remove(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	if err := unlock(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func unlock(dir string) error {
	if err := os.Chmod(dir, owner); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := unlock(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
