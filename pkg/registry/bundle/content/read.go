// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/audit"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/tarball"
)

const mediaType = tarball.MediaType

// Keys of the audit annotations of a request for content.
const (
	auditBundle = "content.rukpak.io/bundle-uid"
	auditDigest = "content.rukpak.io/digest"
	auditBytes  = "content.rukpak.io/bytes"
)

// get answers GET and HEAD: RFC 9110 with ranges and conditions, RFC 9530 for the digest.
func (r *REST) get(ctx context.Context, name string, o *rukpak.BundleContentOptions, w http.ResponseWriter, req *http.Request, responder rest.Responder) {
	b, err := r.Bundles.Get(ctx, name)
	if err != nil {
		responder.Error(err)
		return
	}
	c, err := pick(b, o.Digest)
	if err != nil {
		responder.Error(err)
		return
	}
	blob, err := r.open(ctx, b, c)
	if err != nil {
		responder.Error(err)
		return
	}
	defer blob.close()

	h := w.Header()
	h.Set("Content-Type", c.MediaType)
	h.Set("ETag", etag(c.Digest))
	h.Set("Repr-Digest", reprDigest(c.Digest))
	out := newPacedWriter(w)
	http.ServeContent(out, req, "", c.UpdateTime.Time, blob)
	if err := out.finish(); err != nil {
		klog.FromContext(ctx).V(4).Info("Reader of content went away", "bundle", klog.KObj(b), "err", err)
	}
	audit.AddAuditAnnotations(ctx, auditBundle, string(b.UID), auditDigest, c.Digest, auditBytes, strconv.FormatInt(out.written, 10))
	readBytes.WithLabelValues(b.Namespace).Add(float64(out.written))
}

// pick chooses the content that is asked for: the current one, or the one with a digest.
func pick(b *rukpak.Bundle, digest string) (*rukpak.ContentStatus, error) {
	if digest != "" {
		if _, err := content.ParseDigest(digest); err != nil {
			return nil, badRequest("query parameter digest: %v", err)
		}
		if c := b.Status.Content; c != nil && c.Digest == digest {
			return c, nil
		}
		for i := range b.Status.History {
			if b.Status.History[i].Digest == digest {
				return &b.Status.History[i], nil
			}
		}
		return nil, noSuchDigest(b, digest)
	}
	if b.Status.Content == nil {
		return nil, noContent(b)
	}
	return b.Status.Content, nil
}

// open opens the stored bytes of a content. Bytes that are gone are said to be so in the bundle's status.
func (r *REST) open(ctx context.Context, b *rukpak.Bundle, c *rukpak.ContentStatus) (*blob, error) {
	store, found, err := r.locate(ctx, b, c.Digest)
	if err != nil {
		return nil, unavailable("look up the content of bundle", b, err)
	}
	if found {
		var info content.Info
		if info, err = r.Stores[store].Stat(ctx, c.Digest); err == nil {
			if info.Size == c.Size {
				return &blob{ctx: ctx, store: r.Stores[store], digest: c.Digest, size: info.Size}, nil
			}
			err = fmt.Errorf("the stored content has %d bytes in place of %d", info.Size, c.Size)
		} else if !errors.Is(err, content.ErrNotFound) {
			return nil, unavailable("open the content of bundle", b, err)
		}
	}
	if c == b.Status.Content {
		r.markLost(ctx, b, c.Digest, err)
	}
	return nil, lost(b, c.Digest)
}

// markLost says in the status that content cannot be served any more.
func (r *REST) markLost(ctx context.Context, b *rukpak.Bundle, digest string, cause error) {
	log := klog.FromContext(ctx)
	log.Error(cause, "Content of a bundle is lost", "bundle", klog.KObj(b), "digest", digest)
	ctx = context.WithoutCancel(ctx)
	ctx, cancel := context.WithTimeout(ctx, r.CommitTimeout)
	defer cancel()
	_, err := r.Bundles.Commit(ctx, b.Name, func(now *rukpak.Bundle) error {
		if now.UID != b.UID || now.Status.Content == nil || now.Status.Content.Digest != digest {
			return nil
		}
		conditions.SetContentAvailable(&now.Status.Conditions, now.Generation, false, conditions.ReasonContentLost, "the stored bytes of "+digest+" are gone")
		return nil
	})
	if err != nil {
		log.Error(err, "Cannot say in the status that content is lost", "bundle", klog.KObj(b))
	}
}

// etag is a digest as a strong entity tag.
func etag(digest string) string { return `"` + digest + `"` }

// reprDigest is a digest as the value of the header field Repr-Digest (RFC 9530).
func reprDigest(digest string) string {
	raw, err := hex.DecodeString(strings.TrimPrefix(digest, content.Algorithm+":"))
	if err != nil {
		return ""
	}
	return "sha-256=:" + base64.StdEncoding.EncodeToString(raw) + ":"
}

// CheckStored makes the condition ContentAvailable of a bundle say whether its content can be served.
func (r *REST) CheckStored(ctx context.Context, b *rukpak.Bundle) {
	c := b.Status.Content
	if c == nil || !meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionContentAvailable) {
		return
	}
	blob, err := r.open(genericapirequest.WithNamespace(ctx, b.Namespace), b, c)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Content cannot be served", "bundle", klog.KObj(b), "digest", c.Digest)
		return
	}
	blob.close()
}
