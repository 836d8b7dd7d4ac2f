// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content"
)

// NoteFull says in the status of a bundle that a write of its content was refused for want of room, if that is why
// it was. So the reconciler waits for room in place of trying again.
func (r *REST) NoteFull(ctx context.Context, b *rukpak.Bundle, refused error) {
	if refused != nil && apierrors.HasStatusCause(refused, CauseStorageFull) {
		r.setFull(ctx, b, true)
	}
}

func (r *REST) setFull(ctx context.Context, b *rukpak.Bundle, full bool) {
	ctx, cancel := context.WithTimeout(genericapirequest.WithNamespace(context.WithoutCancel(ctx), b.Namespace), lookupTimeout)
	defer cancel()
	_, err := r.Bundles.Commit(ctx, b.Name, func(now *rukpak.Bundle) error {
		if now.UID == b.UID {
			conditions.SetStorageFull(&now.Status.Conditions, now.Generation, full)
		}
		return nil
	})
	if err != nil && !apierrors.IsNotFound(err) {
		klog.FromContext(ctx).Error(err, "Cannot say in the status whether the content store is full", "bundle", klog.KObj(b))
	}
}

// Room returns why a store takes no new content, nil if it takes some. One that is not configured takes none, but waiting for
// room does not help there; and of one that does not say, nobody knows.
func (r *REST) Room(ctx context.Context, store string) error {
	s, ok := r.Stores[store]
	if !ok {
		return nil
	}
	if err := s.Room(ctx); errors.Is(err, content.ErrNoSpace) {
		return err
	}
	return nil
}

// CheckRoom ends the waiting of those of the bundles that wait for room in a store that has some, or whose class is gone.
func (r *REST) CheckRoom(ctx context.Context, bundles []rukpak.Bundle) {
	for i := range bundles {
		b := &bundles[i]
		if !meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionStorageFull) {
			continue
		}
		class, err := r.Classes.Class(ctx, b.Spec.ProvisionerClassName)
		if err != nil && !apierrors.IsNotFound(err) || err == nil && r.Room(ctx, class.Store) != nil {
			continue
		}
		r.setFull(ctx, b, false)
	}
}
