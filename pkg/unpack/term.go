// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content/places"
	"rukpak.io/apiserver/pkg/generated/informers/externalversions"
	listers "rukpak.io/apiserver/pkg/generated/listers/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/pod"
	"rukpak.io/apiserver/pkg/unpack/queue"
)

// Indexes of the informers.
const (
	indexClass = "class" // bundles by the name of their class
	indexOwner = "owner" // pods by the bundles that own them
)

// longestRetry bounds the wait after an error of the server's own.
const longestRetry = 30 * time.Second

// term is one spell of work: its caches, its queue, and what it remembers. What it
// forgets with its end is never needed for more than speed.
type term struct {
	Config
	reconciler *Reconciler
	queue      workqueue.TypedRateLimitingInterface[cache.ObjectName]
	bundles    listers.BundleLister
	classes    listers.ProvisionerClassLister
	byClass    cache.Indexer
	pods       cache.Indexer // nil without a cluster
	modes      modes
	notes      notes
	traces     traces
	direct     direct
	looks      *looks
	// finds are what looks have found for bundles that wait for a place: a look for each time that they are looked at would cost
	// them their turn.
	finds    memory[find]
	ownPods  ownPods
	endings  endings
	places   *queue.Queue
	launches launches
	pulls    *pulls               // nil where there is no pace
	told     memory[time.Time]    // when a bundle has last said which one it is of those that wait
	recorder events.EventRecorder // nil without a cluster
}

func newTerm(r *Reconciler) *term {
	t := &term{
		Config:     r.config,
		reconciler: r,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](5*time.Millisecond, longestRetry),
			workqueue.TypedRateLimitingQueueConfig[cache.ObjectName]{Name: "rukpak_unpack"}),
		traces:  traces{tracer: r.config.Tracer},
		endings: endings{timers: map[types.UID]*time.Timer{}},
		direct:  direct{slots: places.New(r.config.Workers, r.config.Workers)},
	}
	t.looks = newLooks(t.queue.Add)
	limits := r.config.Limits
	if r.config.Kube != nil && r.config.Pulls.PerSecond > 0 {
		t.pulls = newPulls(r.config.Pulls, t.pullLoad)
		limits.Pace = t.pulls.wait
	}
	t.places = queue.New(limits, t.queue.Add)
	return t
}

// run works until ctx ends, and returns when nothing is being done any more.
func (t *term) run(ctx context.Context) error {
	defer t.queue.ShutDown()
	defer inFlight.Set(0)
	defer queued.Set(0)
	defer podsInFlight.Set(0)
	defer narrowed.Set(0)
	defer t.traces.abandon()
	stopRecording, err := t.startRecording(ctx)
	if err != nil {
		return err
	}
	defer stopRecording()
	stopWatching, err := t.watch(ctx)
	if err != nil {
		return err
	}
	defer t.endings.stop()
	defer stopWatching()
	var work sync.WaitGroup
	for range t.Workers {
		work.Go(func() {
			for t.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	t.queue.ShutDown()
	work.Wait()
	t.direct.stopAll()
	t.looks.all.Wait() // its context has ended
	return nil
}

// watch starts the informers and returns once they have seen what there is.
func (t *term) watch(ctx context.Context) (stop func(), err error) {
	own := externalversions.NewSharedInformerFactory(t.Bundles, 0)
	bundles := own.Rukpak().V1alpha1().Bundles()
	classes := own.Rukpak().V1alpha1().ProvisionerClasses()
	t.bundles, t.classes, t.byClass = bundles.Lister(), classes.Lister(), bundles.Informer().GetIndexer()
	if err := bundles.Informer().AddIndexers(cache.Indexers{indexClass: classOf}); err != nil {
		return nil, err
	}
	synced := []cache.InformerSynced{}
	handle := func(informer cache.SharedIndexInformer, handler cache.ResourceEventHandler) error {
		registration, err := informer.AddEventHandler(handler)
		if err == nil {
			synced = append(synced, registration.HasSynced)
		}
		return err
	}
	if err := handle(bundles.Informer(), t.bundleHandler()); err != nil {
		return nil, err
	}
	if err := handle(classes.Informer(), changes(t.enqueueClass)); err != nil {
		return nil, err
	}
	stop = own.Shutdown
	if t.Kube != nil {
		factory := podFactory(t.Config)
		informer := factory.Core().V1().Pods().Informer()
		t.pods = informer.GetIndexer()
		if err := informer.AddIndexers(cache.Indexers{indexOwner: ownerOf}); err != nil {
			return nil, err
		}
		if err := handle(informer, t.podHandler()); err != nil {
			return nil, err
		}
		stop = func() { factory.Shutdown(); own.Shutdown() }
		factory.Start(ctx.Done())
	}
	own.Start(ctx.Done())
	// False means that ctx has ended, which the caller sees itself.
	cache.WaitForCacheSync(ctx.Done(), synced...)
	return stop, nil
}

// podFactory watches the pods that carry our label, without what is of no use here.
func podFactory(c Config) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(c.Kube, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = pod.LabelManagedBy + "=" + pod.ManagedBy
		}),
		informers.WithTransform(func(obj any) (any, error) {
			if p, ok := obj.(*corev1.Pod); ok {
				pod.Trim(p)
			}
			return obj, nil
		}))
}

// changes makes a handler that gets the object whatever has happened to it.
func changes(f func(any)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    f,
		UpdateFunc: func(_, obj any) { f(obj) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			f(obj)
		},
	}
}

// bundleHandler enqueues what changes, tells events and metrics of it, and counts the
// attempts that are running. An informer calls a handler from one goroutine.
func (t *term) bundleHandler() cache.ResourceEventHandler {
	running := map[cache.ObjectName]struct{}{}
	look := func(obj any, gone bool) {
		b, ok := obj.(*v1alpha1.Bundle)
		if !ok {
			return
		}
		name := cache.MetaObjectToName(b)
		delete(running, name)
		if !gone && open(b.Status.Unpack) {
			running[name] = struct{}{}
			if !t.places.Knows(name) {
				// After a start all that runs has its place before anything new gets one.
				t.places.Hold(name, placeOf(b.Status.Unpack), time.Now())
			}
		}
		inFlight.Set(float64(len(running)))
		t.queue.Add(name)
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { look(obj, false) },
		UpdateFunc: func(before, obj any) {
			b, ok := obj.(*v1alpha1.Bundle)
			if old, isBundle := before.(*v1alpha1.Bundle); ok && isBundle {
				t.observe(old, b)
			}
			look(obj, false)
		},
		DeleteFunc: func(obj any) {
			if unseen, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unseen.Obj
			}
			if b, ok := obj.(*v1alpha1.Bundle); ok && open(b.Status.Unpack) {
				t.finished(b, b.Status.Unpack, resultCancelled, "BundleDeleted", time.Now())
			}
			look(obj, true)
		},
	}
}

func classOf(obj any) ([]string, error) {
	b, ok := obj.(*v1alpha1.Bundle)
	if !ok {
		return nil, nil
	}
	return []string{b.Spec.ProvisionerClassName}, nil
}

func ownerOf(obj any) ([]string, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, nil
	}
	var names []string
	for _, owner := range pod.Owners(p) {
		names = append(names, cache.NewObjectName(p.Namespace, owner.Name).String())
	}
	return names, nil
}

// enqueueClass looks at the bundles of a class again, and at those without one, for
// which it may be the default.
func (t *term) enqueueClass(obj any) {
	class, ok := obj.(*v1alpha1.ProvisionerClass)
	if !ok {
		return
	}
	for _, name := range []string{class.Name, ""} {
		// The only error is an index that does not exist.
		found, _ := t.byClass.ByIndex(indexClass, name)
		for _, obj := range found {
			t.queue.Add(cache.MetaObjectToName(obj.(*v1alpha1.Bundle)))
		}
	}
}

func (t *term) enqueueOwner(obj any) {
	if p, ok := obj.(*corev1.Pod); ok {
		t.noteDisruption(p)
		for _, owner := range pod.Owners(p) {
			t.queue.Add(cache.NewObjectName(p.Namespace, owner.Name))
		}
	}
}

// noteDisruption takes down why a pod is taken away: by the time that its bundle is looked at it may be gone.
func (t *term) noteDisruption(p *corev1.Pod) {
	o, ok := pod.Disrupted(p)
	if !ok {
		return
	}
	if made, err := pod.Made(t.Key, p); err == nil {
		t.notes.disrupted(made.Nonce, verdict{reason: o.Reason, message: o.Message})
	}
}

// next works on the next bundle of the queue. It returns false when there is no more work.
func (t *term) next(ctx context.Context) bool {
	name, shutdown := t.queue.Get()
	if shutdown {
		return false
	}
	defer t.queue.Done(name)
	if ctx.Err() != nil {
		return true // until the queue is empty
	}
	after, err := t.guarded(ctx, name)
	logger := klog.FromContext(ctx)
	switch {
	case ctx.Err() != nil:
	case apierrors.IsConflict(err):
		// Somebody was quicker, and the cache has yet to hear of it.
		logger.V(4).Info("Bundle changed meanwhile", "bundle", name)
		t.queue.AddRateLimited(name)
	case err != nil:
		logger.Error(err, "Bundle is tried again", "bundle", name)
		t.queue.AddRateLimited(name)
	default:
		t.queue.Forget(name)
		if after > 0 {
			t.queue.AddAfter(name, after)
		}
	}
	return true
}

// panicked counts and logs a panic that was caught, and returns it as an error.
func panicked(ctx context.Context, p any, over string, name cache.ObjectName) error {
	caught.Inc()
	err := fmt.Errorf("panic: %v", p)
	klog.FromContext(ctx).Error(err, "Panic over "+over, "bundle", name, "stack", string(debug.Stack()))
	return err
}

// guarded keeps a panic over one bundle from taking the process down. It is
// counted and shown on the bundle.
func (t *term) guarded(ctx context.Context, name cache.ObjectName) (after time.Duration, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicked(ctx, p, "a bundle", name)
			t.confess(ctx, name)
		}
	}()
	return t.reconcile(ctx, name)
}

// confess says on a bundle that the server is at fault. It does so as well as it can:
// the error that led here is the one that counts.
func (t *term) confess(ctx context.Context, name cache.ObjectName) {
	b, err := t.Bundles.RukpakV1alpha1().Bundles(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if err != nil {
		return
	}
	if meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionUnpacked) {
		return // what is served is served
	}
	const message = "the server failed over this bundle; its log says more"
	if !conditions.SetProgress(&b.Status.Conditions, b.Generation, metav1.ConditionUnknown, v1alpha1.ReasonInternalError, message) {
		return
	}
	if u := b.Status.Unpack; open(u) {
		u.Reason, u.Message = v1alpha1.ReasonInternalError, message // which the attempt takes back when it gets on
	}
	if _, err := t.Bundles.RukpakV1alpha1().Bundles(name.Namespace).UpdateStatus(ctx, b, metav1.UpdateOptions{}); err != nil {
		klog.FromContext(ctx).Error(err, "Panic could not be shown", "bundle", name)
	}
}
