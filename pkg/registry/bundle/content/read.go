// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/audit"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/provisioner"
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
	if asksInside(o) {
		r.inside(ctx, name, o, w, req, responder)
		return
	}
	b, c, blob, err := r.find(ctx, name, o)
	if err != nil {
		responder.Error(err)
		return
	}
	defer blob.close()

	out := newSender(ctx, w)
	if req.Method == http.MethodGet {
		out.whole = func() *check { return r.seals.check(c.Digest, c.Size) }
	}
	err = r.serve(out, req, c, blob)
	audit.AddAuditAnnotations(ctx, auditBundle, string(b.UID), auditDigest, c.Digest, auditBytes, strconv.FormatInt(out.written, 10))
	readBytes.Add(float64(out.written))
	switch {
	case errors.Is(err, errDamaged):
		r.damaged(ctx, b, c, blob.storeName, out, responder, err)
	case err != nil:
		klog.FromContext(ctx).V(4).Info("Content was not sent whole", "bundle", klog.KObj(b), "err", err)
		out.abort(responder, unavailable("send the content", b, err))
	case out.dropped:
		out.refuse(responder, c.Size, refusedByHTTP(b, c, out.code))
	}
}

// serve sends a content, or the part of it that is asked for. The error says what has gone wrong since the answer
// was begun.
func (r *REST) serve(out *sender, req *http.Request, c *rukpak.ContentStatus, blob io.ReadSeeker) error {
	h := out.Header()
	h.Set("Content-Type", c.MediaType)
	h.Set("ETag", etag(c.Digest))
	h.Set("Repr-Digest", reprDigest(c.Digest))
	serve(out, req, c.Size, c.UpdateTime.Time, blob)
	return out.finish()
}

// lookupTimeout bounds the look-ups before content is sent. The request itself has no deadline: it takes as long
// as the client's line is slow.
const lookupTimeout = 10 * time.Second

// find finds the content that a request asks for, and opens it.
func (r *REST) find(ctx context.Context, name string, o *rukpak.BundleContentOptions) (*rukpak.Bundle, *rukpak.ContentStatus, *blob, error) {
	limited, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	b, err := r.Bundles.Get(limited, name)
	if err != nil {
		return nil, nil, nil, Late(ctx, "read the bundle", name, err)
	}
	c, err := pick(b, o.Digest)
	if err != nil {
		return nil, nil, nil, err
	}
	blob, err := r.open(limited, b, c)
	if err != nil {
		return nil, nil, nil, err
	}
	blob.ctx = ctx
	return b, c, blob, nil
}

// pick chooses the content that is asked for: the current one, or the one with a digest.
func pick(b *rukpak.Bundle, digest string) (*rukpak.ContentStatus, error) {
	if digest != "" {
		if _, err := content.ParseDigest(digest); err != nil {
			return nil, badRequest("query parameter digest: %v", err)
		}
		for c := range b.Status.Contents() {
			if c.Digest == digest {
				return c, nil
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
	found, err := r.stored(ctx, b, c)
	if err == nil {
		return found, nil
	}
	if !errors.Is(err, content.ErrNotFound) {
		return nil, unavailable("open the content", b, err)
	}
	if !knownLost(b, c) {
		r.markLost(ctx, b, c, err)
	}
	return nil, lost(b, c.Digest)
}

// knownLost reports whether a bundle says already that a content is lost.
func knownLost(b *rukpak.Bundle, c *rukpak.ContentStatus) bool {
	available := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionContentAvailable)
	return b.Status.Content != nil && b.Status.Content.Digest == c.Digest &&
		available != nil && available.Status == metav1.ConditionFalse && available.Reason == v1alpha1.ReasonContentLost
}

// markLost says in the status that content cannot be served any more: that of the bundle in the conditions, an
// earlier one by taking it out of the history.
func (r *REST) markLost(ctx context.Context, b *rukpak.Bundle, c *rukpak.ContentStatus, cause error) {
	digest := c.Digest
	log := klog.FromContext(ctx)
	log.Error(cause, "Content of a bundle is lost", "bundle", klog.KObj(b), "digest", digest)
	ctx = context.WithoutCancel(ctx)
	ctx, cancel := context.WithTimeout(ctx, r.CommitTimeout)
	defer cancel()
	if r.Whole != nil {
		// History that was taken out of a status does not come back with the right store. What has no record is missing in etcd.
		store, _, err := r.locate(ctx, b, digest)
		if err == nil {
			err = r.Whole(ctx, store)
		}
		if err != nil {
			log.Error(err, "It is not said in the status", "bundle", klog.KObj(b))
			return
		}
	}
	_, err := r.Bundles.Commit(ctx, b.Name, func(now *rukpak.Bundle) error {
		if now.UID != b.UID {
			return nil
		}
		// It may have come back meanwhile.
		if _, err := r.stored(ctx, now, c); err == nil || !errors.Is(err, content.ErrNotFound) {
			return err
		}
		now.Status.History = slices.DeleteFunc(now.Status.History, func(c rukpak.ContentStatus) bool { return c.Digest == digest })
		if now.Status.Content == nil || now.Status.Content.Digest != digest {
			return nil
		}
		conditions.SetContentAvailable(&now.Status.Conditions, now.Generation, false, v1alpha1.ReasonContentLost, "the stored bytes of "+digest+" are gone")
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

// stored finds the bytes of a bundle's content. ErrNotFound if the bundle has no record of them, or the store
// does not have them, or not all of them.
func (r *REST) stored(ctx context.Context, b *rukpak.Bundle, c *rukpak.ContentStatus) (*blob, error) {
	store, found, err := r.locate(ctx, b, c.Digest)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fmt.Errorf("%s of bundle %s/%s has no record: %w", c.Digest, b.Namespace, b.Name, content.ErrNotFound)
	}
	info, err := r.Stores[store].Stat(ctx, c.Digest)
	if err != nil {
		return nil, err
	}
	if info.Size != c.Size {
		return nil, fmt.Errorf("%s has %d bytes in place of %d: %w", c.Digest, info.Size, c.Size, content.ErrNotFound)
	}
	return &blob{ctx: ctx, storeName: store, store: r.Stores[store], digest: c.Digest, size: info.Size}, nil
}

// CheckStored makes the status of a bundle say what of its content can be served: content that is gone is lost, and
// content that was called lost and is there, as after a volume was put right, is available again.
func (r *REST) CheckStored(ctx context.Context, b *rukpak.Bundle) {
	ctx = genericapirequest.WithNamespace(ctx, b.Namespace)
	for i := range b.Status.History {
		r.checkOne(ctx, b, &b.Status.History[i])
	}
	if b.Status.Content == nil || !r.checkOne(ctx, b, b.Status.Content) {
		return
	}
	if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionContentAvailable); c == nil || c.Reason == v1alpha1.ReasonContentLost {
		r.markFound(ctx, b)
	}
}

// checkOne reports whether a content is there. Content that is not is marked so, unless it is already.
func (r *REST) checkOne(ctx context.Context, b *rukpak.Bundle, c *rukpak.ContentStatus) bool {
	_, err := r.stored(ctx, b, c)
	known := c == b.Status.Content && !meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionContentAvailable)
	switch {
	case err == nil:
		return true
	case !errors.Is(err, content.ErrNotFound):
		klog.FromContext(ctx).Error(err, "Content cannot be looked for", "bundle", klog.KObj(b), "digest", c.Digest)
	case !known:
		r.markLost(ctx, b, c, err)
	}
	return false
}

// markFound takes back that content is lost.
func (r *REST) markFound(ctx context.Context, b *rukpak.Bundle) {
	ctx, cancel := context.WithTimeout(ctx, r.CommitTimeout)
	defer cancel()
	_, err := r.Bundles.Commit(ctx, b.Name, func(now *rukpak.Bundle) error {
		if now.UID != b.UID || now.Status.Content == nil || now.Status.Content.Digest != b.Status.Content.Digest {
			return nil
		}
		generation := now.Generation
		conditions.SetContentAvailable(&now.Status.Conditions, generation, true, v1alpha1.ReasonAvailable, "content is served")
		if now.Status.Content.Generation == generation && provisioner.BuiltIn(now.Status.Provisioner) {
			conditions.SetProgress(&now.Status.Conditions, generation, metav1.ConditionTrue, v1alpha1.ReasonUnpacked, "content of this generation is served")
		}
		return nil
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot say in the status that content is there", "bundle", klog.KObj(b))
	}
}
