// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package uploads

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/content/upload"
)

// create answers POST: it begins an upload. The body can be empty, or the beginning, or all of it.
func (r *REST) create(c *call) error {
	f, err := parseFields(c.req.Header)
	if err != nil {
		return err
	}
	if err := r.mayWrite(c); err != nil {
		return err
	}
	body := r.newBody(c.w, c.req)
	c.body, c.id = body, upload.NewID()
	// The list has it before the body is here, so that other requests to it may come.
	end, err := r.begin(c, body)
	if err != nil {
		return err
	}
	defer end()
	b, s, err := r.open(c, f)
	if err != nil {
		return err
	}
	if err := r.receive(c, b, s, body, f); err != nil {
		r.Content.NoteFull(c.ctx, b, err)
		return r.broken(c, s, err)
	}
	r.tell(c, s)
	if f.complete {
		end()
		return r.complete(c, s)
	}
	return writeJSON(c, http.StatusCreated, r.view(c, s))
}

// tell sets the header fields that say what was begun.
func (r *REST) tell(c *call, s *upload.Session) {
	r.describe(c.w.Header(), s, s.MaxBytes)
	c.w.Header().Set("Location", location(c, s))
}

// broken removes what a request has begun and not brought, and returns what to answer. As long as no other request has come to
// it, nobody knows of it but this client, who is told nothing but the error. After that it is not this request's to remove.
func (r *REST) broken(c *call, s *upload.Session, err error) error {
	if c.lost || c.body.followed() {
		r.tell(c, s)
		return err
	}
	removed := r.remove(c.ctx, s, resultAborted)
	if removed != nil && !errors.Is(removed, upload.ErrChanged) {
		klog.FromContext(c.ctx).Error(removed, "Cannot drop an upload that came to nothing", "upload", s.ID)
	}
	if errors.Is(c.body.err, errEnded) {
		return unavailable(c, "take the beginning of an upload", errEnded)
	}
	return err
}

// location is where an upload is, relative to the request (RFC 3986, section 4.2). kube-apiserver would give
// anything else the host of our Service, where its clients are not let in, or cannot come to.
func location(c *call, s *upload.Session) string {
	if strings.HasSuffix(c.req.URL.Path, "/") {
		return s.ID
	}
	return "uploads/" + s.ID
}

// open checks what can be checked before a byte has come, and writes a new session to the bundle that it returns.
func (r *REST) open(c *call, f fields) (*rukpak.Bundle, *upload.Session, error) {
	size := f.length
	if f.complete && c.req.ContentLength >= 0 {
		size = c.req.ContentLength
	}
	t, err := r.Content.Target(c.ctx, c.name, c.req.Header, size)
	if err != nil {
		return nil, nil, err
	}
	if err := t.Store.Room(c.ctx); err != nil {
		err = storeFailed(c, err)
		r.Content.NoteFull(c.ctx, t.Bundle, err)
		return nil, nil, err
	}
	budget, err := r.Content.Budget(c.ctx, t.Bundle, "")
	if err != nil {
		return nil, nil, err
	}
	if err := budget.Check(size); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(c.ctx, lookupTimeout)
	defer cancel()
	ofBundle, ofNamespace, err := r.Sessions.Count(ctx, c.namespace, string(t.Bundle.UID))
	if err != nil {
		return nil, nil, sessionFailed(c, err)
	}
	if ofBundle >= maxOfBundle || ofNamespace >= maxOfNamespace {
		return nil, nil, retryLater(c.status(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, CauseTooManyUploads,
			"the bundle has %d of at most %d uploads under way, and its namespace %d of at most %d: complete or delete one",
			ofBundle, maxOfBundle, ofNamespace, maxOfNamespace), crowdedRetrySeconds)
	}
	s := &upload.Session{
		Key:    upload.Key{Namespace: c.namespace, BundleUID: string(t.Bundle.UID), ID: c.id},
		Bundle: c.name, Generation: t.Bundle.Generation, User: c.username(), Store: t.StoreName, MaxBytes: t.MaxBytes, Length: upload.UnknownLength,
		IfMatch: lines(c.req.Header, "If-Match"), IfNoneMatch: lines(c.req.Header, "If-None-Match"), ReprDigest: lines(c.req.Header, "Repr-Digest"),
	}
	if err := setLength(c, s, f); err != nil {
		return nil, nil, err
	}
	if err := r.Sessions.Create(ctx, s); err != nil {
		return nil, nil, sessionFailed(c, err)
	}
	begun.Inc()
	audit.AddAuditAnnotations(c.ctx, auditUpload, s.ID)
	klog.FromContext(c.ctx).V(2).Info("Began an upload", "bundle", klog.KRef(s.Namespace, s.Bundle), "upload", s.ID, "user", s.User)
	return t.Bundle, s, nil
}

// lines is the value of a field that may come in several lines.
func lines(h http.Header, field string) string { return strings.Join(h.Values(field), ", ") }

// view is an upload as JSON, for clients that do not read header fields.
type view struct {
	ID       string     `json:"id"`
	Location string     `json:"location"`
	Offset   int64      `json:"offset"`
	Length   *int64     `json:"length,omitempty"`
	Complete bool       `json:"complete"`
	Digest   string     `json:"digest,omitempty"`
	Created  *time.Time `json:"created"`
	Expires  time.Time  `json:"expires"`
	// ReprDigest is that of the whole as the client has said it, so that it finds again what it began.
	ReprDigest string `json:"reprDigest,omitempty"`
}

func (r *REST) view(c *call, s *upload.Session) view {
	v := view{
		ID: s.ID, Location: pathOf(c, "uploads/"+s.ID), Offset: s.Offset(), Complete: s.Outcome != nil,
		Created: &s.Created, Expires: r.expires(s).UTC(), ReprDigest: s.ReprDigest,
	}
	if s.Length != upload.UnknownLength {
		v.Length = &s.Length
	}
	if s.Outcome != nil {
		v.Digest = s.Outcome.Digest
	}
	return v
}

func writeJSON(c *call, code int, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	c.w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	c.w.WriteHeader(code)
	if _, err := c.w.Write(append(raw, '\n')); err != nil {
		klog.FromContext(c.ctx).V(4).Info("Client went away", "err", err)
	}
	return nil
}
