// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// noDebris looks at the data dir of the shared server. The function that it returns waits until nothing has come to
// it but content that bundles name. No other test writes meanwhile: those that do are not parallel.
func noDebris(t *testing.T) func() {
	t.Helper()
	dir := shared.server.Dir
	before := must(files(dir))(t)
	return func() {
		t.Helper()
		list := must(bundles(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{}))(t)
		eventually(t, "data dir without debris", func() string { return debris(dir, list, before) })
	}
}

// debris names what is in a data dir, was not there before, and belongs to no content of these bundles.
func debris(dir string, list *v1alpha1.BundleList, before map[string]bool) string {
	named := map[string]bool{}
	for _, b := range list.Items {
		if b.Status.Content != nil {
			named[strings.TrimPrefix(b.Status.Content.Digest, "sha256:")] = true
		}
		for _, c := range b.Status.History {
			named[strings.TrimPrefix(c.Digest, "sha256:")] = true
		}
	}
	now, err := files(dir)
	if err != nil {
		return err.Error()
	}
	var found []string
	for path := range now {
		if !before[path] && !named[filepath.Base(path)] {
			found = append(found, path)
		}
	}
	return strings.Join(found, ", ")
}

// files lists what a server keeps of content in its data dir.
func files(dir string) (map[string]bool, error) {
	found := map[string]bool{}
	for _, folder := range []string{"content/tmp", "content/blobs", "scratch"} {
		err := filepath.WalkDir(filepath.Join(dir, folder), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // gone while it was being looked at
			}
			if err == nil && !d.IsDir() {
				found[path] = true
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}
