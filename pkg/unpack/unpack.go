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
	"fmt"
	"io"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/generated/clientset/versioned"
	"rukpak.io/apiserver/pkg/tarball"
	"rukpak.io/apiserver/pkg/unpack/pod"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LeaseName is the name of the Lease that one Reconciler of several holds.
const LeaseName = "rukpak-apiserver"

// Puller takes images from registries in this process, without credentials.
type Puller interface {
	// Resolve looks a reference up and returns the image by digest.
	Resolve(ctx context.Context, reference string) (string, error)
	// Pack writes the files below path of an image, which Resolve returned, as a
	// canonical archive. Scratch is a folder for temporary files.
	Pack(ctx context.Context, resolved, path string, w io.Writer, limits tarball.Limits, scratch string) (tarball.Summary, error)
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
	// Image is the server's own image, for unpack pods.
	Image string
	// Server returns where unpack pods send content. An empty URL means that it is
	// not known yet, which puts attempts off.
	Server func() pod.Endpoint
	// Key is the secret that proves which pods this server made. Every replica and
	// every restart has the same one.
	Key []byte
	// Namespace is where the Lease is, and Identity who holds it. An identity that
	// outlives a restart gets its own Lease back without waiting.
	Namespace, Identity string
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
	case config.Kube != nil && (config.Namespace == "" || config.Identity == ""):
		return nil, errors.New("unpack: the namespace and the identity for the lease are required")
	}
	if config.Workers <= 0 {
		config.Workers = 4
	}
	for _, d := range []struct {
		value     *time.Duration
		byDefault time.Duration
	}{
		{&config.Backoff.Base, 5 * time.Second},
		{&config.Backoff.Cap, 5 * time.Minute},
		{&config.Backoff.Slow, 30 * time.Minute},
		{&config.Backoff.ImageGrace, 20 * time.Second},
	} {
		if *d.value <= 0 {
			*d.value = d.byDefault
		}
	}
	registerMetrics()
	return &Reconciler{config: config, put: putThrough(config.Bundles)}, nil
}

// Run works until ctx ends. In a cluster it does so while it holds the Lease, which
// it gives back when it is done.
func (r *Reconciler) Run(ctx context.Context) error {
	if r.config.Kube == nil {
		return newTerm(r).run(ctx)
	}
	for ctx.Err() == nil {
		if err := r.campaign(ctx); err != nil {
			return err
		}
	}
	return nil
}

// campaign waits for the Lease and works until it is lost or ctx ends. Nothing
// is being worked on any more when the Lease is given back and when it returns.
func (r *Reconciler) campaign(ctx context.Context) error {
	holding, letGo := context.WithCancel(context.WithoutCancel(ctx))
	defer letGo()
	var (
		mu            sync.Mutex
		started, over bool
		working       sync.WaitGroup
	)
	lead := func(leading context.Context) {
		mu.Lock()
		if over {
			mu.Unlock()
			return
		}
		started = true
		working.Add(1)
		mu.Unlock()
		defer working.Done()
		defer letGo()
		work, stop := context.WithCancel(ctx)
		defer stop()
		defer context.AfterFunc(leading, stop)()
		if err := newTerm(r).run(work); err != nil {
			klog.FromContext(ctx).Error(err, "The reconciler ended")
		}
	}
	// Whoever waits for the Lease has nothing to finish.
	defer context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		if !started {
			letGo()
		}
	})()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            r.lease(),
		LeaseDuration:   15 * time.Second,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     2 * time.Second,
		ReleaseOnCancel: true,
		Name:            LeaseName,
		Callbacks:       leaderelection.LeaderCallbacks{OnStartedLeading: lead, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return fmt.Errorf("unpack: leader election: %w", err)
	}
	elector.Run(holding)
	mu.Lock()
	over = true
	mu.Unlock()
	working.Wait()
	return nil
}

func (r *Reconciler) lease() resourcelock.Interface {
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: r.config.Namespace, Name: LeaseName},
		Client:     r.config.Kube.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: r.config.Identity},
	}
}
