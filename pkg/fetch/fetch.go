// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fetch keeps the content of a bundle in a volume of a pod, for programs that read files and know nothing of
// Kubernetes. It is what the program rukpak-fetch does.
package fetch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/bundleclient"
	"rukpak.io/apiserver/pkg/diskfull"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// Fetch says what is kept where.
type Fetch struct {
	// Client reads the bundle.
	Client *bundleclient.Client
	// Namespace and Name are those of the bundle.
	Namespace, Name string
	// Volume is where its content goes.
	Volume *Volume
	// Tell are told of each content but the first one of a volume: whoever starts later finds it there.
	Tell []Listener
	// LookInterval is how often it is looked why there is no content, while there has not been any. 0 means DefaultLookInterval.
	LookInterval time.Duration
}

// errDone ends following that has reached what it was for.
var errDone = errors.New("done")

// Once puts the content that the bundle has into the volume. It waits for one, and tries again what fails, until ctx ends; then
// the error is what failed last, if anything did, and why ctx ended. What is foreign in the volume (ErrForeign) ends it, since
// no other try does better.
func (f *Fetch) Once(ctx context.Context) error {
	if _, err := f.settled(); err != nil {
		return err
	}
	following, done := context.WithCancelCause(ctx)
	defer done(nil)
	var failure error
	err := f.follow(following, "", func(ctx context.Context, b *v1alpha1.Bundle, content *typed.Content) error {
		err := f.put(ctx, b, content)
		switch {
		case err == nil:
			done(errDone)
		case errors.Is(err, ErrForeign):
			done(err)
		}
		if failure == nil || ctx.Err() == nil {
			failure = err // and not that time was over in the middle of the next try
		}
		return err
	})
	if errors.Is(err, errDone) {
		return f.Volume.Prune(time.Now())
	}
	if errors.Is(err, ErrForeign) {
		return err
	}
	if failure != nil {
		return fmt.Errorf("%w (%w)", failure, err)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = errors.Join(err, f.look(context.WithoutCancel(ctx)))
	}
	return err
}

// Follow puts each content that the bundle gets into the volume, until ctx ends, or something is foreign there (ErrForeign).
func (f *Fetch) Follow(ctx context.Context) error {
	have, err := f.settled()
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	var working sync.WaitGroup
	working.Go(func() { f.prune(ctx) })
	defer working.Wait()
	defer end(nil)
	return f.follow(ctx, have, func(ctx context.Context, b *v1alpha1.Bundle, content *typed.Content) error {
		err := f.put(ctx, b, content)
		if errors.Is(err, ErrForeign) {
			end(err)
		}
		return err
	})
}

// follow calls put for each content, and says why there is none where nothing is had and nothing has come.
func (f *Fetch) follow(ctx context.Context, have string, put bundleclient.StreamHandler) error {
	wondering, arrived := context.WithCancel(ctx)
	var working sync.WaitGroup
	if have == "" {
		working.Go(func() { f.wonder(wondering) })
	}
	defer working.Wait()
	defer arrived()
	return f.Client.Follow(ctx, f.Namespace, f.Name, have, func(ctx context.Context, b *v1alpha1.Bundle, content *typed.Content) error {
		arrived()
		return put(ctx, b, content)
	})
}

// settled is the digest of content that is there and that nobody has to be told of any more; empty if there is none.
func (f *Fetch) settled() (string, error) {
	current, err := Current(f.Volume.dir)
	if err != nil || current == "" || len(f.Tell) == 0 {
		return current, err
	}
	told, err := f.Volume.told()
	if err != nil || told != current {
		return "", err
	}
	return current, nil
}

// prune removes what is old.
func (f *Fetch) prune(ctx context.Context) {
	ticker := time.NewTicker(max(f.Volume.opts.Grace/4, time.Second))
	defer ticker.Stop()
	for {
		if err := f.Volume.Prune(time.Now()); err != nil {
			klog.FromContext(ctx).Error(err, "Old content was not removed")
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// put makes content the current one, and tells of it. Where there is no room for it what is old goes, for the next try.
func (f *Fetch) put(ctx context.Context, b *v1alpha1.Bundle, content *typed.Content) error {
	err := f.replace(ctx, b, content)
	if !diskfull.Is(err) {
		return err
	}
	return errors.Join(full(f.Volume.dir, b.Status.Content, err), f.Volume.Prune(time.Now()))
}

func (f *Fetch) replace(ctx context.Context, b *v1alpha1.Bundle, content *typed.Content) error {
	first, err := Current(f.Volume.dir)
	if err != nil {
		return err
	}
	if first != content.Digest {
		if err := f.Volume.fits(b.Status.Content); err != nil {
			return err
		}
	}
	changed, err := f.Volume.Put(ctx, content.Digest, content)
	if err != nil {
		return err
	}
	if changed {
		klog.FromContext(ctx).Info("Content is there", "bundle", klog.KObj(b), "digest", content.Digest, "bytes", content.Size)
	}
	if first == "" {
		return f.Volume.setTold(content.Digest)
	}
	return f.tell(ctx, content.Digest)
}

// tell tells all of a content, unless they were told before.
func (f *Fetch) tell(ctx context.Context, digest string) error {
	told, err := f.Volume.told()
	if err != nil || told == digest {
		return err
	}
	for _, listener := range f.Tell {
		if err := listener.Changed(ctx, digest); err != nil {
			return fmt.Errorf("the content is there, but who reads it was not told: %w", err)
		}
	}
	return f.Volume.setTold(digest)
}
