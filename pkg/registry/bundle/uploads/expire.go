// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package uploads

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/content/upload"
)

// expireInterval is the pause between two looks for uploads that do not go on.
const expireInterval = time.Minute

// RunExpiry removes uploads that do not go on, until ctx ends. One replica is enough; several do no harm.
func (r *REST) RunExpiry(ctx context.Context) error {
	timer := time.NewTicker(expireInterval)
	defer timer.Stop()
	// Another replica looks from then on.
	defer openCount.Set(0)
	defer openBytes.Set(0)
	for {
		if err := r.Expire(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot look for expired uploads")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
	}
}

// Expire removes once the uploads that have expired, and those of bundles that are gone.
func (r *REST) Expire(ctx context.Context) error {
	// In another etcd the bundles of these uploads may be missing.
	if err := r.belongs(ctx, ""); err != nil {
		return err
	}
	var count, size int64
	for s, err := range r.Sessions.All(ctx) {
		if unreadable(err) {
			klog.FromContext(ctx).Error(err, "An upload cannot be read: what it may name is kept until the key is deleted")
			continue
		}
		if err != nil {
			return err
		}
		gone, err := r.isGone(ctx, s)
		if err != nil {
			return err
		}
		if gone || r.expired(s) {
			klog.FromContext(ctx).Info("Remove an upload", "bundle", klog.KRef(s.Namespace, s.Bundle), "upload", s.ID, "complete", s.Outcome != nil, "bundleIsGone", gone)
			remove := r.remove
			if gone {
				remove = r.drop
			}
			// One that goes on since it was listed has not expired.
			if err := remove(ctx, s, resultExpired); err != nil && !errors.Is(err, upload.ErrChanged) {
				return err
			}
			continue
		}
		if s.Outcome == nil {
			count++
			size += s.Offset()
		}
	}
	openCount.Set(float64(count))
	openBytes.Set(float64(size))
	return nil
}

// belongs returns an error while what is missing in etcd, or in a store if it is named, may be no loss.
func (r *REST) belongs(ctx context.Context, store string) error {
	if r.Whole == nil {
		return nil
	}
	return r.Whole(ctx, store)
}

// unreadable reports whether an error is about one session alone.
func unreadable(err error) bool {
	_, ok := errors.AsType[*upload.UnreadableError](err)
	return ok
}

// isGone reports whether the bundle of a session is not there any more.
func (r *REST) isGone(ctx context.Context, s *upload.Session) (bool, error) {
	ctx, cancel := context.WithTimeout(genericapirequest.WithNamespace(ctx, s.Namespace), lookupTimeout)
	defer cancel()
	b, err := r.Bundles.Get(ctx, s.Bundle)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return err == nil && string(b.UID) != s.BundleUID, err
}

// Release removes the uploads to a bundle that was deleted. What it does not get to is found by Expire.
func (r *REST) Release(b *rukpak.Bundle) {
	ctx, cancel := context.WithTimeout(context.Background(), r.CommitTimeout)
	defer cancel()
	for s, err := range r.Sessions.OfBundle(ctx, b.Namespace, string(b.UID)) {
		if unreadable(err) {
			continue // Expire tells of it
		}
		if err == nil {
			err = r.drop(ctx, s, resultAborted)
		}
		if err != nil {
			klog.Background().Error(err, "Cannot remove the uploads of a bundle now", "bundle", klog.KObj(b))
			return
		}
	}
}
