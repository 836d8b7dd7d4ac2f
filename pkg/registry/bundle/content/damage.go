// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/content"
)

// rereadTimeout bounds the second look at a blob that was read wrong.
const rereadTimeout = 10 * time.Minute

// damaged ends an answer whose content turned out not to be what it should, and looks into it.
func (r *REST) damaged(ctx context.Context, b *rukpak.Bundle, c *rukpak.ContentStatus, store content.Store, out *sender, responder rest.Responder, err error) {
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

// reread reads a blob again, which rules out that memory or a line were at fault. One that is damaged is removed, so
// that no other reader gets a part of it, and its bundle's content is lost: from there on it is restored like content
// that went away by itself. It returns what to tell the reader.
func (r *REST) reread(ctx context.Context, b *rukpak.Bundle, c *rukpak.ContentStatus, store content.Store) error {
	if _, busy := r.rereads.LoadOrStore(c.Digest, true); busy {
		return unavailable("send the content", b, errDamaged)
	}
	defer r.rereads.Delete(c.Digest)
	log := klog.FromContext(ctx)
	err := rehash(ctx, store, c)
	switch {
	case err == nil:
		log.Info("Content that was read wrong is whole: memory or a line may be bad", "bundle", klog.KObj(b), "digest", c.Digest)
		return unavailable("send the content", b, errors.New("it was read wrong and is whole"))
	case errors.Is(err, content.ErrNotFound):
	case !errors.Is(err, errDamaged):
		log.Error(err, "Content that was read wrong cannot be read again", "bundle", klog.KObj(b), "digest", c.Digest)
		return unavailable("send the content", b, err)
	default:
		if err := store.Delete(ctx, c.Digest); err != nil {
			log.Error(err, "Damaged content cannot be removed", "bundle", klog.KObj(b), "digest", c.Digest)
			return unavailable("send the content", b, errDamaged)
		}
	}
	r.markLost(ctx, b, c, err)
	return lost(b, c.Digest)
}

// rehash reads a blob from end to end. Its error is errDamaged, or one of the store.
func rehash(ctx context.Context, store content.Store, c *rukpak.ContentStatus) error {
	blob, err := store.Open(ctx, c.Digest, 0, -1)
	if err != nil {
		return err
	}
	sum := sha256.New()
	_, err = io.Copy(sum, blob)
	if err := errors.Join(err, blob.Close()); err != nil {
		return err
	}
	if got := content.Algorithm + ":" + hex.EncodeToString(sum.Sum(nil)); got != c.Digest {
		return fmt.Errorf("%w: they have %s", errDamaged, got)
	}
	return nil
}
