// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundleclient

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// Handler is told of the content of a bundle. The files are those of bundle.status.content, do not change and stay until it returns.
// Where the client may not watch bundles, no more of the bundle is known than its name, and the digest, size and media type of
// its content.
type Handler func(ctx context.Context, bundle *v1alpha1.Bundle, files fs.FS) error

// Watch calls handle with the content that a bundle has, and again whenever it has other content than handle succeeded with
// last, until ctx ends; then it returns why, and nothing of it runs any more. There is one call at a time. What changes
// meanwhile comes afterwards, the latest of it alone. After an error handle is called again, later each time, at
// once when there is other content. A bundle that is not there, or has no content, is waited for; servers that restart and
// watches that end are not seen. The state of handle's own effects is not known: it is called at the first content
// of each Watch.
//
// With the verb watch on bundles it learns of new content at once; without it, it asks every PollInterval.
func (c *Client) Watch(ctx context.Context, namespace, name string, handle Handler) error {
	return c.follow(ctx, namespace, name, "", func(ctx context.Context, bundle *v1alpha1.Bundle) error {
		files, err := c.Open(ctx, namespace, name, OpenOptions{Digest: bundle.Status.Content.Digest})
		if err != nil {
			return err
		}
		return errors.Join(handle(ctx, bundle, files.FS()), files.Close())
	})
}

// StreamHandler is told of the content of a bundle as Handler is. The content is closed when it returns. What it reads is
// verified when it has read io.EOF, as that of Stream.
type StreamHandler func(ctx context.Context, bundle *v1alpha1.Bundle, content *typed.Content) error

// Follow does as Watch, with the archive in place of its files. Have is the digest of content that is dealt with already, or empty.
func (c *Client) Follow(ctx context.Context, namespace, name, have string, handle StreamHandler) error {
	return c.follow(ctx, namespace, name, have, func(ctx context.Context, bundle *v1alpha1.Bundle) error {
		content, err := c.Stream(ctx, namespace, name, typed.GetContentOptions{Digest: bundle.Status.Content.Digest})
		if err != nil {
			return err
		}
		return errors.Join(handle(ctx, bundle, content), content.Close())
	})
}

// follow calls deliver for each content.
func (c *Client) follow(ctx context.Context, namespace, name, have string, deliver func(context.Context, *v1alpha1.Bundle) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	logger := klog.FromContext(ctx).WithValues("bundle", klog.KRef(namespace, name))
	o := &observer{bundles: c.bundles, namespace: namespace, name: name, opts: c.opts, logger: logger, seen: have, changed: make(chan struct{}, 1)}
	var working sync.WaitGroup
	working.Go(func() { o.run(ctx) })
	defer working.Wait()
	defer cancel(nil)

	retry := time.NewTimer(0)
	defer retry.Stop()
	<-retry.C
	wait := backoff{min: c.opts.MinBackoff, max: c.opts.MaxBackoff}
	failed := ""
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-o.changed:
		case <-retry.C:
		}
		bundle := o.latest()
		if bundle == nil || bundle.Status.Content == nil || bundle.Status.Content.Digest == have {
			continue
		}
		digest := bundle.Status.Content.Digest
		if digest == failed && wait.pending() {
			continue // something else about the bundle has changed
		}
		err := deliver(ctx, bundle)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			have, failed = digest, ""
			wait.reset()
			continue
		}
		if digest != failed {
			wait.reset()
		}
		failed = digest
		pause := wait.next()
		logger.Error(err, "Content was not handled", "digest", digest, "again", pause)
		retry.Reset(pause)
	}
}
