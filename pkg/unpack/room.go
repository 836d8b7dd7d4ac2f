// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// full tells whether the bundle waits for room in its content store. The server says so in a condition when it refuses
// what an attempt brings, and takes it back when there is room, which ends the waiting: nothing is counted as a failure,
// and no pod is made in vain. An attempt that is running is not ended by a store that is full; the server does that.
func (w *work) full(ctx context.Context) bool {
	if meta.IsStatusConditionTrue(w.bundle.Status.Conditions, v1alpha1.ConditionStorageFull) {
		return true
	}
	return w.Room != nil && !open(w.bundle.Status.Unpack) && w.Room(ctx, w.class.Store) != nil
}
