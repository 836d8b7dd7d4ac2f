// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bundleclient is for programs that use the content of bundles.
//
//	client, err := bundleclient.NewForConfig(config, bundleclient.Options{Cache: cache})
//
//	files, err := client.Open(ctx, "team-a", "app", bundleclient.OpenOptions{})   // an io/fs.FS, on disk
//	defer files.Close()
//
//	remote, err := client.OpenRemote(ctx, "team-a", "app", bundleclient.OpenOptions{}) // an io/fs.FS that reads single files from the server
//
//	err = client.Watch(ctx, "team-a", "app",                                     // now, and whenever there is new content
//		func(ctx context.Context, bundle *v1alpha1.Bundle, files fs.FS) error { … })
//
//	bundle, err := client.Push(ctx, "team-a", "app", os.DirFS("app"), bundleclient.PushOptions{})
//
// Files of Open and Watch are seen only when the whole content has had its digest. Stream, Follow and the files of OpenRemote hand out bytes before: only
// io.EOF says that they were right. What breaks off goes on where it was, and nothing is held in memory whole. All of it takes get on bundles/content; Watch is quicker with watch on bundles, and Push needs what
// UploadContent of the clientset does.
package bundleclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"rukpak.io/apiserver/pkg/generated/clientset/versioned"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/tarball"
	"rukpak.io/apiserver/pkg/tarball/extract"
)

// What Options leave at zero.
const (
	DefaultPollInterval = 30 * time.Second
	DefaultMinBackoff   = time.Second
	DefaultMaxBackoff   = 5 * time.Minute
)

// Options say how a Client works. The zero value is good.
type Options struct {
	// Cache keeps what is opened. Without one content is fetched each time, to a temporary folder that goes with it.
	Cache *Cache
	// Limits bound content that is opened without a cache. What Stream and Follow hand out is bounded by who reads it.
	Limits tarball.Limits
	// Patience is how long a transfer goes on trying without getting a byte further. 0 means two minutes, of Push five, a
	// negative one that nothing is tried again.
	Patience time.Duration
	// PollInterval is how often Watch and Follow ask for new content where they may not watch bundles.
	PollInterval time.Duration
	// MinBackoff and MaxBackoff are the first and the longest pause after a failure.
	MinBackoff, MaxBackoff time.Duration
}

// Client reads, follows and writes the content of bundles. It may be used by many goroutines at the same time.
type Client struct {
	bundles typed.BundlesGetter
	opts    Options
}

// New returns a Client that works through a clientset's RukpakV1alpha1(), or a Route.
func New(bundles typed.BundlesGetter, opts Options) *Client {
	if opts.PollInterval <= 0 {
		opts.PollInterval = DefaultPollInterval
	}
	if opts.MinBackoff <= 0 {
		opts.MinBackoff = DefaultMinBackoff
	}
	if opts.MaxBackoff <= 0 {
		opts.MaxBackoff = max(DefaultMaxBackoff, opts.MinBackoff)
	}
	return &Client{bundles: bundles, opts: opts}
}

// NewForConfig returns a Client that works through kube-apiserver.
func NewForConfig(config *rest.Config, opts Options) (*Client, error) {
	clients, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return New(clients.RukpakV1alpha1(), opts), nil
}

// Stream opens the content of a bundle as the archive that it is, a tar.gz. The caller closes it. Read whole it
// ends with io.EOF only if it has its digest: nothing that was read is to be acted on before.
func (c *Client) Stream(ctx context.Context, namespace, name string, opts typed.GetContentOptions) (*typed.Content, error) {
	if opts.Patience == 0 {
		opts.Patience = c.opts.Patience
	}
	return c.bundles.Bundles(namespace).GetContent(ctx, name, opts)
}

// OpenOptions choose what is opened.
type OpenOptions struct {
	// Digest picks one of the contents that are still served; empty means the current one.
	Digest string
}

// maxReplaced is how often content may be replaced between two requests until Open gives up.
const maxReplaced = 5

// Open returns the files of a bundle's content. The caller closes them. Whether it may read the content is asked each
// time, also where the cache has it. An error of the API is one of k8s.io/apimachinery/pkg/api/errors; IsConflict means
// that there is no content (yet).
func (c *Client) Open(ctx context.Context, namespace, name string, opts OpenOptions) (*Files, error) {
	if c.opts.Cache == nil {
		return c.openOnce(ctx, namespace, name, opts.Digest)
	}
	for replaced := 1; ; replaced++ {
		digest, err := c.current(ctx, namespace, name, opts.Digest)
		if err != nil {
			return nil, err
		}
		files, err := c.openCached(ctx, namespace, name, digest)
		// Between the two requests the bundle may have got other content, and keep no history.
		if opts.Digest != "" || !apierrors.IsNotFound(err) || replaced == maxReplaced {
			return files, err
		}
	}
}

// current asks which content a bundle has, and whether it may be read.
func (c *Client) current(ctx context.Context, namespace, name, digest string) (string, error) {
	first, err := c.Stream(ctx, namespace, name, typed.GetContentOptions{Digest: digest, Length: 1})
	if err != nil {
		return "", err
	}
	return first.Digest, first.Close()
}

// openCached returns files from the cache, which gets them first if it has to.
func (c *Client) openCached(ctx context.Context, namespace, name, digest string) (*Files, error) {
	dir, held, err := c.opts.Cache.open(ctx, digest, func(ctx context.Context) (io.ReadCloser, error) {
		return c.Stream(ctx, namespace, name, typed.GetContentOptions{Digest: digest})
	})
	if errors.Is(err, errHeld) {
		return c.openOnce(ctx, namespace, name, digest)
	}
	if err != nil {
		return nil, fmt.Errorf("content of bundle %q: %w", name, err)
	}
	return newFiles(digest, dir, held.Close)
}

// openOnce returns files in a temporary folder.
func (c *Client) openOnce(ctx context.Context, namespace, name, digest string) (_ *Files, err error) {
	content, err := c.Stream(ctx, namespace, name, typed.GetContentOptions{Digest: digest})
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bundle-")
	if err != nil {
		err = fmt.Errorf("content of bundle %q: %w: without a cache it goes into a folder in %s: mount a volume there, or open a cache", namespace+"/"+name, err, os.TempDir())
		return nil, errors.Join(err, content.Close())
	}
	remove := func() error { return os.RemoveAll(dir) }
	_, err = extract.Tree(ctx, content, dir, extract.Options{Limits: c.opts.Limits})
	if err := errors.Join(err, content.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("content of bundle %q: %w", name, err), remove())
	}
	return newFiles(content.Digest, dir, remove)
}
