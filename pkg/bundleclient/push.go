// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundleclient

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/klauspost/compress/gzip"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// PushOptions guard a write, and say how patient it is.
type PushOptions = typed.UploadContentOptions

// Push makes files the content of a bundle whose source is an upload, and returns the bundle as it is then. They are packed
// into a temporary file first, and sent in parts that go on where they broke off. The server makes the canonical archive of
// them: the same files have the same digest.
func (c *Client) Push(ctx context.Context, namespace, name string, files fs.FS, opts PushOptions) (_ *v1alpha1.Bundle, err error) {
	packed, err := os.CreateTemp("", "bundle-*.tar.gz")
	if err != nil {
		return nil, err
	}
	// It is read back from the same open file, and of no use to anybody else.
	defer func() { err = errors.Join(err, packed.Close(), os.Remove(packed.Name())) }()
	if err := pack(packed, files); err != nil {
		return nil, fmt.Errorf("content of bundle %q: %w", name, err)
	}
	info, err := packed.Stat()
	if err != nil {
		return nil, err
	}
	if opts.Patience == 0 {
		opts.Patience = c.opts.Patience
	}
	return c.bundles.Bundles(namespace).UploadContent(ctx, name, packed, info.Size(), opts)
}

// pack writes files as a tar.gz.
func pack(out *os.File, files fs.FS) error {
	compressed := gzip.NewWriter(out)
	archive := tar.NewWriter(compressed)
	return errors.Join(archive.AddFS(files), archive.Close(), compressed.Close())
}
