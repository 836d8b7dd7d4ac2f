// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"archive/tar"
	"compress/gzip"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

var getOptions = metav1.GetOptions{}

// resumed reads content to its end, however often the reading is cut: kube-apiserver does so after a
// minute, and leaves it to its clients to ask for the rest.
type resumed struct {
	open func(offset int64) (*typed.Content, error)
	size int64

	content *typed.Content
	opened  int64 // the offset at which content was opened
	offset  int64
}

func (r *resumed) Read(p []byte) (int, error) {
	if r.offset == r.size {
		return 0, io.EOF
	}
	if r.content == nil {
		content, err := r.open(r.offset)
		if err != nil {
			return 0, err
		}
		r.content, r.opened = content, r.offset
	}
	n, err := r.content.Read(p)
	r.offset += int64(n)
	switch {
	case err == nil, r.offset == r.size:
		return n, nil
	case r.offset == r.opened:
		return n, err // there was no progress
	}
	content := r.content
	r.content = nil
	return n, content.Close()
}

func (r *resumed) Close() error {
	if r.content == nil {
		return nil
	}
	return r.content.Close()
}

// fileOf copies the contents of an archive's regular files, and reads the archive to its very end.
func fileOf(archive io.Reader, w io.Writer) error {
	z, err := gzip.NewReader(archive)
	if err != nil {
		return err
	}
	r := tar.NewReader(z)
	for {
		h, err := r.Next()
		if err == io.EOF {
			_, err = io.Copy(io.Discard, archive)
			return err
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.Copy(w, r); err != nil {
				return err
			}
		}
	}
}
