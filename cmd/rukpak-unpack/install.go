// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
)

// install copies the program to a path where nothing is yet, executable for all.
func install(program, path string) (err error) {
	src, err := os.Open(program)
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	defer src.Close()
	dst, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	defer func() {
		if closeErr := dst.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("install: %w", closeErr)
		}
	}()
	if _, err := io.Copy(dst, src); err != nil {
		return fmt.Errorf("install to %s: %w", path, err)
	}
	// The mode at creation is subject to a umask, this one is not.
	if err := dst.Chmod(0o755); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	return nil
}
