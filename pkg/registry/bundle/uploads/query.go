// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package uploads

import (
	"context"
	"errors"
	"net/http"

	"rukpak.io/apiserver/pkg/content/upload"
	subresource "rukpak.io/apiserver/pkg/registry/bundle/content"
)

// query answers GET and HEAD of an upload: where it is. A request that appends to it here ends first, so that
// what is said stays so.
func (r *REST) query(c *call) error {
	if err := r.settle(c); err != nil {
		return err
	}
	_, s, err := r.find(c)
	if err != nil {
		return err
	}
	r.describe(c.w.Header(), s, s.MaxBytes)
	return writeJSON(c, http.StatusOK, r.view(c, s))
}

// list answers GET and HEAD without an ID: the caller's uploads to the bundle that are under way.
func (r *REST) list(c *call) error {
	ctx, cancel := context.WithTimeout(c.ctx, lookupTimeout)
	defer cancel()
	b, err := r.Bundles.Get(ctx, c.name)
	if err != nil {
		return subresource.Late(ctx, "read the bundle", c.name, err)
	}
	answer := struct {
		Uploads []view `json:"uploads"`
	}{Uploads: []view{}}
	for s, err := range r.Sessions.OfBundle(ctx, c.namespace, string(b.UID)) {
		if unreadable(err) {
			continue
		}
		if err != nil {
			return sessionFailed(c, err)
		}
		if s.User == c.username() && !r.expired(s) {
			answer.Uploads = append(answer.Uploads, r.view(c, s))
		}
	}
	return writeJSON(c, http.StatusOK, answer)
}

// abort answers DELETE: the upload ends, and what has come of it goes.
func (r *REST) abort(c *call) error {
	if err := r.settle(c); err != nil {
		return err
	}
	_, s, err := r.find(c)
	if err != nil {
		return err
	}
	if err := r.drop(c.ctx, s, resultAborted); err != nil {
		return sessionFailed(c, err)
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// drop removes a session, and what others make of it meanwhile as well.
func (r *REST) drop(ctx context.Context, s *upload.Session, result string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.CommitTimeout)
	defer cancel()
	for {
		err := r.remove(ctx, s, result)
		if !errors.Is(err, upload.ErrChanged) {
			return err
		}
		if s, err = r.Sessions.Get(ctx, s.Key); errors.Is(err, upload.ErrNotFound) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// remove removes a session and releases its parts. ErrChanged if others have changed it since it was read.
func (r *REST) remove(ctx context.Context, s *upload.Session, result string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.CommitTimeout)
	defer cancel()
	if err := r.Sessions.Remove(ctx, s); err != nil {
		return err
	}
	if s.Outcome == nil {
		ended.WithLabelValues(result).Inc()
	}
	r.release(ctx, s, s.Parts...)
	return nil
}
