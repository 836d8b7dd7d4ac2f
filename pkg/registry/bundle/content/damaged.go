// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/content/verify"
)

// Damaged is for stored bytes that were found not to have their digest. It reads them again, and if they still do
// not, it removes them and says in the status of every bundle that names them that they are lost; the
// reconciler then gets those of images again from where they came from. It reports whether it did.
//
// Several calls for the same bytes at the same time are one, with the context of the first. That is none of a
// request, whose end would end the looking.
func (r *REST) Damaged(ctx context.Context, store, digest string) (bool, error) {
	if r.Stores[store] == nil {
		return false, fmt.Errorf("there is no content store %q", store)
	}
	result, err, _ := r.damage.Do(store+"/"+digest, func() (any, error) { return r.takeAway(ctx, store, digest) })
	removed, _ := result.(bool)
	return removed, err
}

// takeAway removes a blob if it is damaged, and tells the bundles that have it. It can have removed it and fail to tell them.
func (r *REST) takeAway(ctx context.Context, store, digest string) (removed bool, err error) {
	if r.Whole != nil {
		// What is wrong may be that this is another's store.
		if err := r.Whole(ctx, store); err != nil {
			return false, err
		}
	}
	removed, err = verify.RemoveDamaged(ctx, r.References, store, r.Stores[store], digest, nil)
	if err != nil || !removed {
		return removed, err
	}
	klog.FromContext(ctx).Error(verify.ErrDamaged, "Removed damaged content", "digest", digest)
	bundles, err := r.Bundles.List(genericapirequest.WithNamespace(ctx, ""))
	if err != nil {
		// The collector misses the bytes in its next round, and has the bundles looked at then.
		return true, fmt.Errorf("find the bundles of damaged content: %w", err)
	}
	r.CheckAll(ctx, slices.DeleteFunc(bundles, func(b rukpak.Bundle) bool {
		return !slices.Contains(digestsOfStatus(&b.Status), digest)
	}))
	return true, nil
}

// checksAtOnce is how many bundles are looked at at the same time: enough to hide the distance of a remote store.
const checksAtOnce = 16

// CheckAll does CheckStored for each of the bundles.
func (r *REST) CheckAll(ctx context.Context, bundles []rukpak.Bundle) {
	var g errgroup.Group
	g.SetLimit(checksAtOnce)
	for i := range bundles {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error { r.CheckStored(ctx, &bundles[i]); return nil })
	}
	// None of them returns an error: they are logged, and what they are about is looked at again.
	_ = g.Wait()
}
