// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package fetch

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

const (
	// lastLook bounds a look for why there is no content.
	lastLook = 10 * time.Second
	// firstLook is how long content may take to come until somebody looks why it does not.
	firstLook = time.Second
	// DefaultLookInterval is how often that is looked at again.
	DefaultLookInterval = 30 * time.Second
	// sayAgain is after how many looks that found the same it is said again.
	sayAgain = 10
)

// wonder logs why there is no content, until ctx ends: soon after the beginning, when the reason is another one, and seldom the
// same one again. Following a bundle that is not there is no error, so nobody else would say so.
func (f *Fetch) wonder(ctx context.Context) {
	interval := f.LookInterval
	if interval <= 0 {
		interval = DefaultLookInterval
	}
	pause, said, looks := min(firstLook, interval), "", 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = interval
		err := f.look(ctx)
		if err == nil || ctx.Err() != nil {
			continue // what there is was not put there, which is logged elsewhere
		}
		if looks++; err.Error() != said || looks == sayAgain {
			klog.FromContext(ctx).Info("There is no content yet, and it is waited for", "bundle", klog.KRef(f.Namespace, f.Name), "reason", err)
			said, looks = err.Error(), 0
		}
	}
}

// look says why there is no content.
func (f *Fetch) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lastLook)
	defer cancel()
	content, err := f.Client.Stream(ctx, f.Namespace, f.Name, typed.GetContentOptions{Length: 1, Patience: -1})
	if err != nil {
		return err
	}
	return content.Close()
}
