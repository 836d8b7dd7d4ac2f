// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package fake_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"rukpak.io/apiserver/pkg/generated/clientset/versioned/fake"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// archive is a tar.gz of a few files.
func archive(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, h := range []tar.Header{
		{Name: "a/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "a/b", Typeflag: tar.TypeReg, Mode: 0o644, Size: 4}, {Name: "l", Typeflag: tar.TypeSymlink, Linkname: "a"},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, strings.Repeat("x", int(h.Size))); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []io.Closer{w, z} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func TestFiles(t *testing.T) {
	client := fake.NewClientset()
	content := archive(t)
	client.PrependReactor("get", "bundles/content", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &runtime.Unknown{Raw: content}, nil
	})
	bundles := client.RukpakV1alpha1().Bundles("team")
	f, err := bundles.GetFile(t.Context(), "app", "a/b", typed.GetFileOptions{Offset: 1, Length: 2})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(f); string(got) != "xx" || err != nil || f.Size != 4 {
		t.Errorf("%q of %d, %v", got, f.Size, err)
	}
	if _, err := bundles.GetFile(t.Context(), "app", "a", typed.GetFileOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a directory: %v", err)
	}
	for path, want := range map[string]string{"": "a l", "a": "b", "missing": "not found"} {
		var got []string
		for e, err := range bundles.ListFiles(t.Context(), "app", path, typed.ListFilesOptions{}) {
			if apierrors.IsNotFound(err) {
				got = append(got, "not found")
			} else if err != nil {
				t.Error(err)
			} else {
				got = append(got, e.Name)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %q", path, got)
		}
	}
	for e, err := range bundles.ListFiles(t.Context(), "app", "a", typed.ListFilesOptions{Recursive: true}) {
		if err != nil || e.Digest != f.Digest || e.Size != 4 || e.Mode != "0644" {
			t.Errorf("%+v, %v", e, err)
		}
		break
	}
}
