// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content/listing"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// file is an entry of the archive that a reactor returns.
type file struct {
	name    string
	header  *tar.Header
	content []byte
}

// files reads the content that a reactor to "get" on "bundles/content" returns, a canonical tar.gz.
func (c *fakeBundles) files(ctx context.Context, name, digest string) ([]file, error) {
	content, err := c.GetContent(ctx, name, typed.GetContentOptions{Digest: digest})
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewReader(content)
	if err != nil {
		return nil, fmt.Errorf("content of bundle %q: %w", name, err)
	}
	var files []file
	for r := tar.NewReader(z); ; {
		header, err := r.Next()
		if err == io.EOF {
			return files, content.Close()
		}
		if err != nil {
			return nil, fmt.Errorf("content of bundle %q: %w", name, err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			return nil, fmt.Errorf("content of bundle %q: %w", name, err)
		}
		files = append(files, file{strings.TrimSuffix(header.Name, "/"), header, body})
	}
}

func notFound(name, path string) error {
	return apierrors.NewNotFound(v1alpha1.Resource("bundles/content"), name+"/"+path)
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// GetFile returns a file out of the tar.gz that a reactor to "get" on "bundles/content" returns. It follows no links.
func (c *fakeBundles) GetFile(ctx context.Context, name, path string, opts typed.GetFileOptions) (*typed.Content, error) {
	files, err := c.files(ctx, name, opts.Digest)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(files, func(f file) bool { return f.name == path && f.header.Typeflag == tar.TypeReg })
	if i < 0 {
		return nil, notFound(name, path)
	}
	part := files[i].content
	if opts.Offset < 0 || opts.Offset > int64(len(part)) {
		return nil, fmt.Errorf("file %q of bundle %q: offset %d is outside its %d bytes", path, name, opts.Offset, len(part))
	}
	part = part[opts.Offset:]
	if opts.Length > 0 && opts.Length < int64(len(part)) {
		part = part[:opts.Length]
	}
	whole := files[i].content
	return typed.NewContent(digestOf(whole), int64(len(whole)), opts.Offset, int64(len(part)), io.NopCloser(bytes.NewReader(part))), nil
}

// ListFiles lists the tar.gz that a reactor to "get" on "bundles/content" returns.
func (c *fakeBundles) ListFiles(ctx context.Context, name, path string, opts typed.ListFilesOptions) iter.Seq2[listing.Entry, error] {
	return func(yield func(listing.Entry, error) bool) {
		files, err := c.files(ctx, name, opts.Digest)
		path := strings.TrimSuffix(path, "/")
		isDirectory := func(f file) bool { return f.name == path && f.header.Typeflag == tar.TypeDir }
		if err == nil && path != "" && !slices.ContainsFunc(files, isDirectory) {
			err = notFound(name, path)
		}
		if err != nil {
			yield(listing.Entry{}, err)
			return
		}
		for _, f := range files {
			below, ok := f.name, true
			if path != "" {
				below, ok = strings.CutPrefix(f.name, path+"/")
			}
			if !ok || !opts.Recursive && strings.Contains(below, "/") {
				continue
			}
			entry, err := listed(f, below)
			if !yield(entry, err) || err != nil {
				return
			}
		}
	}
}

var errKind = errors.New("is of a kind that no content has")

func listed(f file, name string) (listing.Entry, error) {
	e := listing.Entry{Name: name, Mode: fmt.Sprintf("%04o", f.header.Mode&0o777)}
	switch f.header.Typeflag {
	case tar.TypeReg:
		e.Type, e.Size, e.Digest = listing.File, f.header.Size, digestOf(f.content)
	case tar.TypeDir:
		e.Type = listing.Directory
	case tar.TypeSymlink:
		e.Type, e.LinkTarget = listing.SymbolicLink, f.header.Linkname
	default:
		return e, fmt.Errorf("%q %w", f.name, errKind)
	}
	return e, nil
}
