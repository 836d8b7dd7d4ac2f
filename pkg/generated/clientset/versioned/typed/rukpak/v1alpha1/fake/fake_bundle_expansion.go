// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/testing"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// GetContent returns the bytes of a *runtime.Unknown that a reactor to "get" on "bundles/content" returns.
func (c *fakeBundles) GetContent(_ context.Context, name string, opts typed.GetContentOptions) (*typed.Content, error) {
	action := testing.NewGetSubresourceAction(c.Resource(), c.Namespace(), "content", name)
	obj, err := c.Fake.Invokes(action, &runtime.Unknown{})
	if err != nil {
		return nil, err
	}
	raw, ok := obj.(*runtime.Unknown)
	if !ok {
		return nil, fmt.Errorf("the reactor to content of bundle %q returned a %T in place of a *runtime.Unknown", name, obj)
	}
	if opts.Offset > int64(len(raw.Raw)) {
		return nil, fmt.Errorf("content of bundle %q: offset %d is beyond its %d bytes", name, opts.Offset, len(raw.Raw))
	}
	sum := sha256.Sum256(raw.Raw)
	if opts.IfNotDigest == "sha256:"+hex.EncodeToString(sum[:]) {
		return nil, apierrors.NewGenericServerResponse(http.StatusNotModified, "get", v1alpha1.Resource("bundles/content"), name, "", 0, true)
	}
	part := raw.Raw[opts.Offset:]
	if opts.Length > 0 && opts.Length < int64(len(part)) {
		part = part[:opts.Length]
	}
	return typed.NewContent("sha256:"+hex.EncodeToString(sum[:]), int64(len(raw.Raw)), opts.Offset, int64(len(part)), io.NopCloser(bytes.NewReader(part))), nil
}

// UploadContent shows the bytes to the reactors as PutContent does.
func (c *fakeBundles) UploadContent(ctx context.Context, name string, content io.ReaderAt, size int64, opts typed.UploadContentOptions) (*v1alpha1.Bundle, error) {
	return c.PutContent(ctx, name, io.NewSectionReader(content, 0, size), typed.PutContentOptions{IfDigest: opts.IfDigest, IfNone: opts.IfNone})
}

// PutContent reads body and shows its bytes to the reactors, as an update of "bundles/content" with a
// *runtime.Unknown; one of them returns the bundle.
func (c *fakeBundles) PutContent(_ context.Context, name string, body io.Reader, _ typed.PutContentOptions) (*v1alpha1.Bundle, error) {
	data, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	action := testing.NewUpdateSubresourceAction(c.Resource(), "content", c.Namespace(), &runtime.Unknown{Raw: data})
	obj, err := c.Fake.Invokes(action, &v1alpha1.Bundle{})
	if err != nil {
		return nil, err
	}
	bundle, ok := obj.(*v1alpha1.Bundle)
	if !ok {
		return nil, fmt.Errorf("the reactor to content of bundle %q returned a %T in place of a *Bundle", name, obj)
	}
	return bundle, nil
}
