// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content"
)

// rereadTimeout bounds the second look at a blob that was read wrong.
const rereadTimeout = 10 * time.Minute

// damaged ends an answer whose content turned out not to be what it should, and looks into it.
func (r *REST) damaged(ctx context.Context, b *rukpak.Bundle, c *rukpak.ContentStatus, store string, out *sender, responder rest.Responder, err error) {
	klog.FromContext(ctx).Error(err, "Content was read wrong", "bundle", klog.KObj(b), "digest", c.Digest, "sent", out.written)
	readDamaged.Inc()
	// Nobody has to wait for it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rereadTimeout)
	if !out.began {
		defer cancel()
		out.answer(responder, r.reread(ctx, b, c, store))
		return
	}
	go func() {
		defer cancel()
		// It is logged where it is found out, and the reader has been cut off.
		_ = r.reread(ctx, b, c, store)
	}()
	out.abort(responder, err)
}

// reread has a blob read again, which rules out that memory or a line were at fault, and taken away if it is damaged, so
// that no other reader gets a part of it. It returns what to tell the reader.
func (r *REST) reread(ctx context.Context, b *rukpak.Bundle, c *rukpak.ContentStatus, store string) error {
	if _, busy := r.rereads.LoadOrStore(c.Digest, true); busy {
		return unavailable("send the content", b, errDamaged)
	}
	defer r.rereads.Delete(c.Digest)
	log := klog.FromContext(ctx)
	removed, err := r.takeAway(ctx, store, c.Digest)
	if err != nil {
		log.Error(err, "Content that was read wrong cannot be mended", "bundle", klog.KObj(b), "digest", c.Digest)
	}
	if !removed && err != nil {
		return unavailable("send the content", b, err)
	}
	_, err = r.stored(ctx, b, c)
	switch {
	case errors.Is(err, content.ErrNotFound):
		// Where all of its bundles could not be told, this one is. It may be known by now.
		if now, getErr := r.Bundles.Get(ctx, b.Name); getErr != nil || meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionContentAvailable) {
			r.markLost(ctx, b, c, err)
		}
		return lost(b, c.Digest)
	case err != nil:
		return unavailable("send the content", b, err)
	}
	log.Info("Content that was read wrong is whole: memory or a line may be bad", "bundle", klog.KObj(b), "digest", c.Digest)
	return unavailable("send the content", b, errors.New("it was read wrong and is whole"))
}
