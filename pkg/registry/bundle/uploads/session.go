// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package uploads

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content/upload"
	"rukpak.io/apiserver/pkg/failpoint"
	subresource "rukpak.io/apiserver/pkg/registry/bundle/content"
)

// Keys of the audit annotations of a request for an upload. A commit adds those of a write of content.
const (
	auditUpload = "uploads.rukpak.io/id"
	auditOffset = "uploads.rukpak.io/offset"
	auditBytes  = "uploads.rukpak.io/bytes"
)

// lookupTimeout bounds the look-ups of a request, which has no deadline of its own.
const lookupTimeout = 10 * time.Second

// username is who makes a request.
func (c *call) username() string {
	if u, ok := genericapirequest.UserFrom(c.ctx); ok {
		return u.GetName()
	}
	return ""
}

// mayWrite asks whether the caller could write the content at once, with PUT: an upload in parts must give nobody more.
func (r *REST) mayWrite(c *call) error {
	caller, ok := genericapirequest.UserFrom(c.ctx)
	if !ok {
		return apierrors.NewUnauthorized("content is written by somebody")
	}
	ctx, cancel := context.WithTimeout(c.ctx, lookupTimeout)
	defer cancel()
	decision, reason, err := r.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: caller, Verb: "update", Namespace: c.namespace, Name: c.name, ResourceRequest: true,
		APIGroup: v1alpha1.GroupName, APIVersion: v1alpha1.SchemeGroupVersion.Version, Resource: "bundles", Subresource: "content",
		Path: pathOf(c, "content"),
	})
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("ask whether the caller may update bundles/content: %w", err))
	}
	return apierrors.NewForbidden(rukpak.Resource("bundles/uploads"), c.name,
		fmt.Errorf("uploads need the verb update on bundles/content: %s", reason))
}

// pathOf is the path of a subresource of the bundle.
func pathOf(c *call, subresource string) string {
	return "/apis/" + v1alpha1.SchemeGroupVersion.String() + "/namespaces/" + c.namespace + "/bundles/" + c.name + "/" + subresource
}

// find returns the bundle and the session that a request is about. A session of somebody else is not found.
func (r *REST) find(c *call) (*rukpak.Bundle, *upload.Session, error) {
	ctx, cancel := context.WithTimeout(c.ctx, lookupTimeout)
	defer cancel()
	b, err := r.Bundles.Get(ctx, c.name)
	if err != nil {
		return nil, nil, subresource.Late(ctx, "read the bundle", c.name, err)
	}
	s, err := r.Sessions.Get(ctx, upload.Key{Namespace: c.namespace, BundleUID: string(b.UID), ID: c.id})
	if err != nil {
		return nil, nil, sessionFailed(c, err)
	}
	if s.User != c.username() || r.expired(s) {
		return nil, nil, notFound(c)
	}
	audit.AddAuditAnnotations(c.ctx, auditUpload, s.ID)
	return b, s, nil
}

// keptDone is how long the end of an upload can be asked for.
const keptDone = 30 * time.Minute

// expires is when a session is removed if nothing happens to it. One that has no bytes is soon made again.
func (r *REST) expires(s *upload.Session) time.Time {
	switch {
	case s.Outcome != nil:
		return s.Touched.Add(min(keptDone, r.Expiry))
	case len(s.Parts) == 0:
		return s.Touched.Add(min(time.Hour, r.Expiry))
	}
	return s.Touched.Add(r.Expiry)
}

func (r *REST) expired(s *upload.Session) bool { return r.Now().After(r.expires(s)) }

// target checks that the session can still become the content of its bundle. Where it never can again, it ends.
func (r *REST) target(c *call, b *rukpak.Bundle, s *upload.Session) (*subresource.Target, error) {
	t, err := (*subresource.Target)(nil), error(nil)
	if b.Generation != s.Generation {
		err = c.status(http.StatusConflict, metav1.StatusReasonConflict, subresource.CauseAttemptEnded, "the bundle's spec has changed since the upload began")
	} else {
		t, err = r.Content.Target(c.ctx, c.name, headerOf(s), s.Length)
	}
	if err == nil && (t.StoreName != s.Store || r.Stores[s.Store] == nil) {
		err = c.status(http.StatusConflict, metav1.StatusReasonConflict, subresource.CauseAttemptEnded, "the bundle's content belongs into another store than when the upload began")
	}
	if err != nil && final(err) {
		c.w.Header().Set(fieldComplete, "?1")
		r.end(c.ctx, s, refusal(s, err))
	}
	return t, err
}

// headerOf has the conditions and the digest that a session was begun with.
func headerOf(s *upload.Session) http.Header {
	h := http.Header{}
	for field, value := range map[string]string{"If-Match": s.IfMatch, "If-None-Match": s.IfNoneMatch, "Repr-Digest": s.ReprDigest} {
		if value != "" {
			h.Set(field, value)
		}
	}
	return h
}

// refusal is the outcome of a session whose bytes cannot be had.
func refusal(s *upload.Session, err error) upload.Outcome {
	o := upload.Outcome{Size: s.Offset()}
	if status, ok := err.(apierrors.APIStatus); ok {
		// A Status has no value that cannot be encoded.
		o.Refusal, _ = json.Marshal(status.Status())
	}
	return o
}

// end ends a session and releases its parts. What it does not get to is done when the session expires, or
// by the collector.
func (r *REST) end(ctx context.Context, s *upload.Session, o upload.Outcome) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.CommitTimeout)
	defer cancel()
	if err := r.Sessions.Finish(ctx, s, o); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot end an upload", "bundle", klog.KRef(s.Namespace, s.Bundle), "upload", s.ID)
		return
	}
	failpoint.Hit("upload/after-finish")
	result := resultRefused
	if o.Digest != "" {
		result = resultCompleted
	}
	ended.WithLabelValues(result).Inc()
	r.release(ctx, s, s.Parts...)
}

// release gives parts back that no session names. The records are removed at once; the blobs go when the collector's
// grace period is over. It is told of them, so that it need not wonder where they came from.
func (r *REST) release(ctx context.Context, s *upload.Session, parts ...upload.Part) {
	for _, p := range parts {
		ref := s.Ref(p)
		err := r.References.Remove(ctx, ref)
		if err == nil {
			_, err = r.References.Mark(ctx, ref.Store, ref.Digest)
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot release a part of an upload now", "bundle", klog.KRef(s.Namespace, s.Bundle), "upload", s.ID)
			return
		}
	}
}
