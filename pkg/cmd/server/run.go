// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/kubernetes"
	eventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/klog/v2"

	rukpakadmission "rukpak.io/apiserver/pkg/admission"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/apiserver"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/collect"
	"rukpak.io/apiserver/pkg/content/instance"
	"rukpak.io/apiserver/pkg/content/reference"
	"rukpak.io/apiserver/pkg/content/upload"
	"rukpak.io/apiserver/pkg/etcd"
	clientset "rukpak.io/apiserver/pkg/generated/clientset/versioned"
	informers "rukpak.io/apiserver/pkg/generated/informers/externalversions"
	subresource "rukpak.io/apiserver/pkg/registry/bundle/content"
	"rukpak.io/apiserver/pkg/registry/bundle/uploads"
	"rukpak.io/apiserver/pkg/unpack/stage"
)

// process holds what one run of the server is made of, from the bottom up.
type process struct {
	*Options
	client   *clientv3.Client         // of etcd
	stores   map[string]content.Store // by the names that classes use
	records  *reference.Records
	uploads  *upload.Sessions
	instance *instance.Guard
	endpoint *endpoint
	classes  classMaker
	// certificates are what is served with, and what the server is trusted by.
	certificates *certificates
	config       *genericapiserver.RecommendedConfig
	kube         kubernetes.Interface       // nil when standalone
	events       eventsv1.EventsV1Interface // nil when standalone; it waits for nobody's requests but its own
	policiesOff  []policy                   // whose admission plugins are off, since the cluster lacks them
	loopback     clientset.Interface
	informers    informers.SharedInformerFactory
	server       *apiserver.Server
	collectors   []*collect.Collector // one for each store
	monitor      *etcd.Monitor        // nil where etcd is in this process
	storeMetrics *storeMetrics
	lacking      lackingContent
	stages       *stage.Notes  // from the content to the reconciler
	recheck      chan struct{} // asks for a look at the stored content of all bundles
	closeStack   []func()
	// background is what works beside the server. It uses etcd and the store, and ends before they do.
	background sync.WaitGroup
}

// backgroundTimeout bounds how long the end of the process waits for what works beside the server.
const backgroundTimeout = 10 * time.Second

// Run serves until ctx ends, or something that the server cannot do without does.
func (o *Options) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &process{Options: o, stores: map[string]content.Store{}, recheck: make(chan struct{}, 1), stages: stage.NewNotes(), storeMetrics: newStoreMetrics()}
	defer p.close()
	showBuild()
	newLeaderMetric()
	for _, step := range []func(context.Context, context.CancelCauseFunc) error{
		p.openStorage, p.lookForEtcd, p.emptyScratch, p.applyOptions, p.checkInstance, p.assemble, p.addHooks,
	} {
		if err := step(ctx, cancel); err != nil {
			return err
		}
	}
	err := p.server.Generic.PrepareRun().RunWithContext(ctx)
	p.waitBackground()
	if err != nil {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

func (p *process) waitBackground() {
	done := make(chan struct{})
	go func() { p.background.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(backgroundTimeout):
		klog.Background().Info("Something that works beside the server does not end")
	}
}

// close undoes what the steps did, in reverse.
func (p *process) close() {
	for _, f := range slices.Backward(p.closeStack) {
		f()
	}
}

func (p *process) onClose(f func()) { p.closeStack = append(p.closeStack, f) }

// openStorage opens etcd, the content stores and the records that link them.
func (p *process) openStorage(ctx context.Context, cancel context.CancelCauseFunc) error {
	if err := os.MkdirAll(p.DataDir, 0o700); err != nil {
		return fmt.Errorf("make the data dir: %w", err)
	}
	return p.openParts(ctx, cancel)
}

// openStored opens what openStorage does if it is there, and makes nothing.
func (p *process) openStored(ctx context.Context, cancel context.CancelCauseFunc) error {
	for name, u := range p.storeURLs {
		if u.Scheme != schemeFile {
			continue
		}
		if _, err := os.Stat(u.Path); err != nil {
			return fmt.Errorf("open the content store %s: %w", name, err)
		}
	}
	return p.openParts(ctx, cancel)
}

func (p *process) openParts(ctx context.Context, cancel context.CancelCauseFunc) error {
	if err := p.openFolders(ctx); err != nil {
		return err
	}
	if err := p.openEtcd(ctx, cancel); err != nil {
		return err
	}
	if err := p.openSharedStores(ctx); err != nil {
		return err
	}
	p.records = reference.New(p.client, referencePrefix, time.Now)
	p.uploads = upload.New(p.client, referencePrefix, time.Now)
	return nil
}

// emptyScratch comes after openStorage: by then the data dir is this server's alone, and what is in there is of one
// that is gone.
func (p *process) emptyScratch(context.Context, context.CancelCauseFunc) error {
	if err := errors.Join(os.RemoveAll(p.scratch()), os.MkdirAll(p.scratch(), 0o700)); err != nil {
		return fmt.Errorf("empty the scratch folder: %w", err)
	}
	return nil
}

func (p *process) scratch() string { return filepath.Join(p.DataDir, "scratch") }

// assemble makes the server and what works beside it.
func (p *process) assemble(_ context.Context, _ context.CancelCauseFunc) error {
	if err := p.makeCollectors(); err != nil {
		return err
	}
	var watched apiserver.Etcd
	if p.monitor != nil {
		watched = p.monitor
	}
	server, err := apiserver.New(p.config, watched, p.instance, subresource.Config{
		References:    p.records,
		Stores:        p.stores,
		Whole:         p.instance.Fits,
		Resolve:       p.resolver(),
		Scratch:       p.scratch(),
		Tracer:        p.tracer(),
		Stages:        p.stages,
		CommitTimeout: min(maxCommitTimeout, p.Collect.Grace/2),
		PlaceTimeout:  20 * time.Second,
		MaxReaders:    p.Transfers.MaxReaders, MaxReadersPerUser: p.Transfers.MaxReadersPerUser,
		MaxBytesPerNamespace: p.Space.PerNamespace.Value(),
		Released:             p.triggerCollectors,
		Now:                  time.Now,
	}, uploads.Config{Sessions: p.uploads, References: p.records, Expiry: p.UploadExpiry})
	if err != nil {
		return fmt.Errorf("assemble the server: %w", err)
	}
	p.server = server
	return nil
}

// applyOptions turns flags into the configuration of the generic server.
func (p *process) applyOptions(ctx context.Context, _ context.CancelCauseFunc) error {
	p.config = genericapiserver.NewRecommendedConfig(apiserver.Codecs)
	apiserver.Describe(&p.config.Config)
	if err := p.ServerRun.ApplyTo(&p.config.Config); err != nil {
		return err
	}
	p.config.EffectiveVersion = ownVersion{p.config.EffectiveVersion}
	if err := p.applyIdentity(ctx); err != nil {
		return err
	}
	if err := p.applyTracing(ctx); err != nil {
		return err
	}
	r := *p.Recommended
	r.Traces = nil
	r.FeatureGate = p.config.FeatureGate
	r.ExtraAdmissionInitializers = func(c *genericapiserver.RecommendedConfig) ([]admission.PluginInitializer, error) {
		// The last option but one: by now there is a loopback client.
		if err := p.makeLoopback(); err != nil {
			return nil, err
		}
		return []admission.PluginInitializer{rukpakadmission.Initializer{Informers: p.informers}}, nil
	}
	switch {
	case p.Standalone:
		r.Admission = nil
	case p.kube != nil:
		var err error
		if r.Admission, p.policiesOff, err = servedPolicies(ctx, p.kube.Discovery(), r.Admission); err != nil {
			return err
		}
	}
	p.config.AddReadyzChecks(healthz.NamedCheck("rukpak-classes", func(*http.Request) error { return p.classes.ready(p.instance.Err()) }))
	p.addEtcdChecks()
	if err := r.ApplyTo(p.config); err != nil {
		return fmt.Errorf("apply the flags: %w", err)
	}
	p.measureEtcd()
	makeFrugal(p.config.SecureServing)
	p.waitForClientCAs()
	p.config.Authentication.APIAudiences = append(authenticator.Audiences(p.APIAudiences), v1alpha1.TokenAudience)
	if p.Standalone {
		return p.standaloneAdmission(ctx, p.config, rukpakadmission.Initializer{Informers: p.informers})
	}
	return nil
}

// makeLoopback makes the clients with which the server is its own client.
func (p *process) makeLoopback() error {
	client, err := clientset.NewForConfig(p.config.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("make the loopback client: %w", err)
	}
	p.loopback = client
	p.informers = informers.NewSharedInformerFactory(client, 0)
	return nil
}

// addHooks starts what works beside the server once that serves.
func (p *process) addHooks(_ context.Context, cancel context.CancelCauseFunc) error {
	hooks := map[string]func(context.Context) error{
		"rukpak-informers":    p.whenWhole(func(ctx context.Context) error { p.informers.Start(ctx.Done()); return nil }),
		"rukpak-classes":      p.whenWhole(func(ctx context.Context) error { return p.classes.run(ctx, p.loopback) }),
		"rukpak-leader":       p.runLeader,
		"rukpak-certificates": p.certificates.follow,
		"rukpak-instance":     p.watchInstance,
		"rukpak-space":        p.watchEtcdSpace,
		"rukpak-store-space":  p.watchStoreSpace,
	}
	if p.monitor != nil {
		hooks["rukpak-etcd"] = p.watchEtcd
	}
	if p.kube != nil {
		hooks["rukpak-permissions"] = func(ctx context.Context) error {
			checkPermissions(ctx, p.kube, p.permissions(p.certificates.publishes()))
			return nil
		}
	}
	if len(p.policiesOff) > 0 {
		hooks["rukpak-policies"] = func(ctx context.Context) error { return awaitPolicies(ctx, p.kube.Discovery(), p.policiesOff) }
	}
	if err := p.server.Generic.AddPreShutdownHook("rukpak-content-drain", p.drainContent); err != nil {
		return err
	}
	for name, run := range hooks {
		// A hook that does not return keeps readyz from passing, so each goes on in the background.
		err := p.server.Generic.AddPostStartHook(name, func(hook genericapiserver.PostStartHookContext) error {
			p.background.Go(func() {
				defer utilruntime.HandleCrashWithContext(hook)
				if err := run(hook); err != nil && hook.Err() == nil {
					cancel(fmt.Errorf("%s: %w", name, err))
				}
			})
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
