// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundleclient

import (
	"errors"
	"io/fs"
	"os"
)

// Files are the files of one content of a bundle, on disk. They do not change, whatever becomes of the bundle, and stay until
// Close.
type Files struct {
	// Digest is that of the content.
	Digest string

	root    *os.Root
	release func() error
}

func newFiles(digest, dir string, release func() error) (*Files, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, errors.Join(err, release())
	}
	return &Files{Digest: digest, root: root, release: release}, nil
}

// FS is the files as a file system. Symbolic links are followed, and do not lead out of it. It implements the interfaces
// of io/fs beside fs.FS, fs.ReadLinkFS among them. Names that are not UTF-8 cannot be opened: io/fs has none.
func (f *Files) FS() fs.FS { return f.root.FS() }

// Dir is the folder that the files are in, for programs that take a path. Nothing may be written there.
func (f *Files) Dir() string { return f.root.Name() }

// Close lets go of the files.
func (f *Files) Close() error { return errors.Join(f.root.Close(), f.release()) }
