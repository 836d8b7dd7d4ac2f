// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/content"
)

// Target is a bundle that the caller may write the content of, as it was when he asked.
type Target struct {
	Bundle *rukpak.Bundle
	// StoreName and Store are those of the bundle's class.
	StoreName string
	Store     content.Store
	// MaxBytes is the greatest size of a body that the class can allow, 0 for any.
	MaxBytes int64

	class *rukpak.ProvisionerClass
	grant *grant
	// committing, if set, is told the digest before the commit.
	committing func(ctx context.Context, digest string) error
}

// Target finds out whether a client may write the content of a bundle, on the conditions in the header fields that
// PUT knows. The errors are those that a PUT would be answered with. The namespace and the caller are in ctx.
func (r *REST) Target(ctx context.Context, name string, header http.Header, size int64) (*Target, error) {
	t, err := r.target(ctx, name, &rukpak.BundleContentOptions{}, &http.Request{Header: header, ContentLength: size})
	if err != nil {
		return nil, err
	}
	if t.grant.attempt {
		return nil, apierrors.NewForbidden(rukpak.Resource("bundles/content"), name, &ownerError{t.Bundle.Spec.Source.Type})
	}
	return t, nil
}

// target finds where a write belongs, and why it may be taken.
func (r *REST) target(ctx context.Context, name string, o *rukpak.BundleContentOptions, req *http.Request) (*Target, error) {
	limited, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	b, err := r.Bundles.Get(limited, name)
	if err != nil {
		return nil, Late(ctx, "read the bundle", name, err)
	}
	if b.Spec.ProvisionerClassName == "" {
		return nil, conflict(b, "ClassMissing", "it has no class yet, so nobody knows where its content belongs")
	}
	class, err := r.Classes.Class(limited, b.Spec.ProvisionerClassName)
	if apierrors.IsNotFound(err) {
		return nil, conflict(b, "ClassMissing", fmt.Sprintf("its class %q does not exist", b.Spec.ProvisionerClassName))
	} else if err != nil {
		return nil, Late(ctx, fmt.Sprintf("read its class %q", b.Spec.ProvisionerClassName), name, err)
	}
	store, ok := r.Stores[class.Store]
	if !ok {
		return nil, conflict(b, "StoreMissing", fmt.Sprintf("its class %q names the store %q, which is not configured", class.Name, class.Store))
	}
	g, err := newGrant(ctx, b, class, o, req)
	if err != nil {
		return nil, err
	}
	limits := limitsOf(class)
	if err := checkHeaders(b, req, limits); err != nil {
		return nil, err
	}
	return &Target{Bundle: b, StoreName: class.Store, Store: store, MaxBytes: maxBody(limits), class: class, grant: g}, nil
}

// Assembled is a body that came in parts and is whole now.
type Assembled struct {
	// Upload is the ID of the upload that the parts are of.
	Upload string
	// UID and Generation are those of the bundle that it is for.
	UID        types.UID
	Generation int64
	// Header has the fields If-Match, If-None-Match and Repr-Digest of the client, where it gave them.
	Header http.Header
	Body   io.Reader
	Size   int64
	// Committing is told the digest of the content before that is committed. Its error ends the write. So whoever asks
	// after a crash can tell whether the content is this one.
	Committing func(ctx context.Context, digest string) error
}

// Write makes a body the content of a bundle as PUT does. It returns the bundle as it is then, and 201 where there was
// no content before, else 200. An error of Body is returned wrapped; others are as PUT answers them.
func (r *REST) Write(ctx context.Context, name string, a Assembled) (*rukpak.Bundle, int, error) {
	b, code, err := r.writeAssembled(ctx, name, a)
	if err != nil {
		countFailure(err)
	}
	return b, code, err
}

func (r *REST) writeAssembled(ctx context.Context, name string, a Assembled) (*rukpak.Bundle, int, error) {
	t, err := r.Target(ctx, name, a.Header, a.Size)
	if err != nil {
		return nil, 0, err
	}
	if t.Bundle.UID != a.UID {
		return nil, 0, conflict(t.Bundle, CauseAttemptEnded, "it was deleted, and another bundle has its name")
	}
	if t.Bundle.Generation != a.Generation {
		return nil, 0, conflict(t.Bundle, CauseAttemptEnded, "its spec has changed since the upload began")
	}
	t.committing, t.grant.upload = a.Committing, a.Upload
	body := &pacedReader{body: a.Body, control: http.NewResponseController(nil), Pace: Pace{Began: time.Now()}}
	b, code, err := r.write(ctx, t, body, &http.Request{Header: a.Header, ContentLength: a.Size})
	if err != nil && body.err != nil {
		return nil, 0, fmt.Errorf("read the parts of the upload: %w", body.err)
	}
	return b, code, err
}

// countFailure counts a write that came to nothing.
func countFailure(err error) {
	result := "failed"
	if s, ok := err.(apierrors.APIStatus); ok && s.Status().Code < http.StatusInternalServerError {
		result = "refused"
	}
	writes.WithLabelValues(result).Inc()
}

// SetDigest sets the header fields of an answer that say which content it is about.
func SetDigest(h http.Header, digest string) {
	h.Set("ETag", etag(digest))
	h.Set("Repr-Digest", reprDigest(digest))
}
