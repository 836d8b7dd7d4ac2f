// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundleclient

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

const (
	// watchTime is how long one watch lasts. Each begins with the state of the bundle, so that nothing is missed for longer.
	watchTime = 5 * time.Minute
	// watchGrace is how much later a watch is given up whose server does not end it.
	watchGrace = 30 * time.Second
	// steady is how long a watch has to have lasted for the next one to begin without a growing pause.
	steady = 10 * time.Second
	// askTime bounds one question for the current content.
	askTime = time.Minute
	// hopeTime is how long to ask for content, after a watch was refused, until it is tried again.
	hopeTime = 10 * time.Minute
)

// observer knows the latest state of one bundle.
type observer struct {
	bundles         typed.BundlesGetter
	namespace, name string
	opts            Options
	logger          klog.Logger

	// seen is the digest that was asked for last. The goroutine of run alone uses it.
	seen string
	// problem is what was logged last.
	problem string

	changed chan struct{}
	mu      sync.Mutex
	bundle  *v1alpha1.Bundle
}

// latest is the state that was seen last; nil where there is no bundle.
func (o *observer) latest() *v1alpha1.Bundle {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bundle
}

func (o *observer) set(b *v1alpha1.Bundle) {
	o.mu.Lock()
	o.bundle = b
	o.mu.Unlock()
	select {
	case o.changed <- struct{}{}:
	default: // it will look at this one
	}
}

// run observes until ctx ends.
func (o *observer) run(ctx context.Context) {
	// Who watches is not to learn of content later than who asks.
	wait := backoff{min: o.opts.MinBackoff, max: o.opts.PollInterval}
	for ctx.Err() == nil {
		began := time.Now()
		err := o.watch(ctx)
		if apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err) {
			o.logger.V(2).Info("May not watch the bundle, and asks for its content", "interval", o.opts.PollInterval, "err", err)
			o.poll(ctx, began.Add(hopeTime))
			continue
		}
		o.report(err)
		if time.Since(began) > steady {
			wait.reset()
		}
		if !sleep(ctx, wait.next()) {
			return
		}
	}
}

// report logs an error that was not logged just before.
func (o *observer) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != o.problem {
		o.logger.Info("Cannot see the bundle", "err", text)
	}
	o.problem = text
}

// watch follows the bundle until the watch ends. It begins with its current state: without a resource version there is none
// that could be too old.
func (o *observer) watch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, watchTime+watchGrace)
	defer cancel()
	w, err := o.bundles.Bundles(o.namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector:  fields.OneTermEqualSelector("metadata.name", o.name).String(),
		TimeoutSeconds: ptr.To(int64(watchTime.Seconds())),
	})
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-w.ResultChan():
			if !ok {
				return nil
			}
			if err := o.see(event); err != nil {
				return err
			}
		}
	}
}

func (o *observer) see(event watch.Event) error {
	bundle, ok := event.Object.(*v1alpha1.Bundle)
	switch {
	case event.Type == watch.Error:
		return apierrors.FromObject(event.Object)
	case !ok:
		return fmt.Errorf("the watch brought a %T", event.Object)
	case event.Type == watch.Deleted:
		bundle = nil
	case bundle.Status.Content != nil:
		o.seen = bundle.Status.Content.Digest
	}
	o.problem = ""
	o.set(bundle)
	return nil
}

// poll asks for the current content again and again until a time.
func (o *observer) poll(ctx context.Context, until time.Time) {
	wait := backoff{min: o.opts.MinBackoff, max: o.opts.PollInterval}
	for time.Now().Before(until) {
		err := o.ask(ctx)
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			o.report(err)
			if !sleep(ctx, wait.next()) {
				return
			}
			continue
		}
		o.problem = ""
		wait.reset()
		if !sleep(ctx, jitter(o.opts.PollInterval)) {
			return
		}
	}
}

// ask looks whether there is other content than was seen last. It takes one request, and one byte of content.
func (o *observer) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	content, err := o.bundles.Bundles(o.namespace).GetContent(ctx, o.name, typed.GetContentOptions{Length: 1, IfNotDigest: o.seen, Patience: -1})
	if typed.IsNotModified(err) {
		return nil
	}
	if err != nil {
		return err
	}
	b := &v1alpha1.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: o.name}}
	b.Status.Content = &v1alpha1.ContentStatus{Digest: content.Digest, Size: content.Size, MediaType: content.MediaType}
	o.seen = content.Digest
	o.set(b)
	return content.Close()
}
