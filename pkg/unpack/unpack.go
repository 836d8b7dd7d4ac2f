// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package unpack turns Bundles whose source is an image into attempts to unpack
// it, and judges how they go.
//
// An attempt is written to the status of its Bundle before anything is done for
// it, and ends there. Whatever holds a right, a pod or a pull of the server's own,
// holds it through that record alone: a pod that the record does not name may
// write nothing and is deleted. So a crash between any two steps leaves a record
// from which the next Reconciler goes on, and nothing else to be mended. Content is
// committed by the API server, which ends the attempt in the same write.
package unpack

import (
	"context"
	"errors"
	"io"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"k8s.io/client-go/kubernetes"
	eventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"

	"rukpak.io/apiserver/pkg/generated/clientset/versioned"
	"rukpak.io/apiserver/pkg/platform"
	"rukpak.io/apiserver/pkg/tarball"
	"rukpak.io/apiserver/pkg/unpack/pod"
	"rukpak.io/apiserver/pkg/unpack/queue"
	"rukpak.io/apiserver/pkg/unpack/stage"
)

// Puller takes images from registries in this process, with no credentials but the server's own.
type Puller interface {
	// Resolve looks a reference up and returns the image by digest.
	Resolve(ctx context.Context, reference string) (string, error)
	// Pack writes the files below path of an image, which Resolve returned, as a
	// canonical archive. Of an index it takes the image for a platform. Scratch is a folder for
	// temporary files.
	Pack(ctx context.Context, resolved string, want platform.Platform, path string, w io.Writer, limits tarball.Limits, scratch string) (tarball.Summary, error)
}

// Backoff says how long failed attempts wait for the next one.
type Backoff struct {
	// Base is the wait after the first failure; it doubles with each. 5 s by default.
	Base time.Duration
	// Cap is the longest wait while failures are within the class's backoffLimit. 5 min by default.
	Cap time.Duration
	// Slow is the wait beyond it. 30 min by default.
	Slow time.Duration
	// ImageGrace is how long the node may go on trying to pull an image, or to start
	// a container, once that has failed. 20 s by default.
	ImageGrace time.Duration
}

// Config is what a Reconciler works with.
type Config struct {
	// Bundles reaches the server's own API with its own identity.
	Bundles versioned.Interface
	// Kube reaches the cluster. Without it there is none, and only mode Direct.
	Kube kubernetes.Interface
	// Direct pulls images in mode Direct.
	Direct Puller
	// AllowDirect lets classes choose mode Direct.
	AllowDirect bool
	// Scratch is the folder for temporary files of mode Direct.
	Scratch string
	// Platform is that of images for bundles that name none and whose class names none. By
	// default that of this program.
	Platform platform.Platform
	// Image is the server's own image, for unpack pods.
	Image string
	// Server returns where unpack pods send content. An empty URL means that it is
	// not known yet, which puts attempts off.
	Server func() pod.Endpoint
	// Key is the secret that proves which pods this server made. Every replica and
	// every restart has the same one.
	Key []byte
	// Room returns why a content store takes no new content, nil if it takes some. It is asked
	// before an attempt is begun. Without it every store takes some.
	Room func(ctx context.Context, store string) error
	// Limits bound how many unpack pods, and pulls in mode Direct, there are at once: 64 by default, and 16 for a
	// namespace. Up to 16 bundles that are alike but for their images, of which there are up to 5, share a pod, and
	// gather for 200 ms.
	Limits queue.Limits
	// Pulls is what a kubelet lets pods pull: pods are made no faster than that. By default they are made as fast as can be.
	Pulls PullRate
	// Events records what happens to bundles. It is not Kube's, so that the events of many bundles do not hold up what is done for them.
	// By default it is.
	Events eventsv1.EventsV1Interface
	// Tracer records attempts of bundles whose creation was traced. Without it none are.
	Tracer trace.Tracer
	// Stages know what those attempts took whose content this process was sent. Nil knows nothing.
	Stages *stage.Notes
	// Workers is how many bundles are worked on at once. 4 by default.
	Workers int
	// Backoff's zero fields take their defaults.
	Backoff Backoff
}

// Reconciler unpacks Bundles.
type Reconciler struct {
	config Config
	// put sends content for an attempt of mode Direct.
	put func(ctx context.Context, namespace, name, nonce string, body io.Reader) error
}

// New returns a Reconciler that Run starts. The error names what is missing in config.
func New(config Config) (*Reconciler, error) {
	switch {
	case config.Bundles == nil:
		return nil, errors.New("unpack: a client for bundles is required")
	case config.Kube == nil && (config.Direct == nil || !config.AllowDirect):
		return nil, errors.New("unpack: without a cluster, mode Direct is required")
	case config.AllowDirect && config.Direct == nil:
		return nil, errors.New("unpack: mode Direct is allowed and has no puller")
	case config.Kube != nil && (config.Image == "" || config.Server == nil):
		return nil, errors.New("unpack: the image and the endpoint for unpack pods are required")
	case config.Kube != nil && len(config.Key) < 32:
		return nil, errors.New("unpack: the key must have at least 32 bytes")
	}
	if config.Workers <= 0 {
		config.Workers = 4
	}
	for _, n := range []struct {
		value     *int
		byDefault int
	}{
		{&config.Limits.Total, 64}, {&config.Limits.PerNamespace, 16}, {&config.Limits.Share, 16}, {&config.Limits.Images, 5},
	} {
		if *n.value <= 0 {
			*n.value = n.byDefault
		}
	}
	if config.Pulls.PerSecond > 0 {
		config.Pulls.Burst = max(config.Pulls.Burst, 1)
		config.Limits.Images = min(config.Limits.Images, config.Pulls.Burst)
	}
	for _, d := range []struct {
		value     *time.Duration
		byDefault time.Duration
	}{
		{&config.Backoff.Base, 5 * time.Second},
		{&config.Backoff.Cap, 5 * time.Minute},
		{&config.Backoff.Slow, 30 * time.Minute},
		{&config.Backoff.ImageGrace, 20 * time.Second},
		{&config.Limits.Gather, 200 * time.Millisecond},
	} {
		if *d.value <= 0 {
			*d.value = d.byDefault
		}
	}
	if config.Events == nil && config.Kube != nil {
		config.Events = config.Kube.EventsV1()
	}
	if config.Platform.IsZero() {
		config.Platform = platform.Own()
	}
	if config.Tracer == nil {
		config.Tracer = noop.NewTracerProvider().Tracer("")
	}
	registerMetrics()
	return &Reconciler{config: config, put: putThrough(config.Bundles)}, nil
}

// Run works until ctx ends, and returns when nothing is being done any more. Of several
// Reconcilers of one API one should run at a time; another does no harm but twice the work.
func (r *Reconciler) Run(ctx context.Context) error {
	return newTerm(r).run(ctx)
}
