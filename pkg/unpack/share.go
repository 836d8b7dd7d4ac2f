// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

// A shared pod unpacks several bundles. Each of them has an attempt of its own, which names the pod and its UID, so each is
// cancelled, replaced or ended without regard to the others, and the pod stays as long as it is anybody's current one.
//
// What becomes of a bundle in it is told by the commit of its content and by nothing else. When the pod
// has ended, or does not get on, whoever has no content goes on alone, in a new attempt; no failure is counted, since it
// is not known whose it was. So all that is said about failures is found out in pods of one bundle.

// sharedAgain is how many attempts of a generation in shared pods may be followed by another one in a shared pod. A pod
// tells of few of the images that cannot be pulled at a time.
const sharedAgain = 2

// share begins attempts of the bundle and of those that have its place, and makes their pod. It is called for the
// first of them, and the others do nothing meanwhile.
func (w *work) share(ctx context.Context, with []cache.ObjectName) (time.Duration, error) {
	name := pod.NewSharedName()
	w.launches.begin(name)
	defer func() {
		w.launches.end(name)
		for _, name := range append(with, w.name) {
			w.queue.Add(name) // whatever has become of it
		}
	}()
	members := append([]*work{w}, w.company(ctx, with)...)
	errs := w.each(ctx, members, func(m *work) error {
		m.podName = name
		return m.begin(ctx, 0, m.task())
	})
	begun := make([]*work, 0, len(members))
	for i, m := range members {
		if errs[i] == nil && open(m.bundle.Status.Unpack) {
			begun = append(begun, m)
		} else if i > 0 && errs[i] != nil {
			klog.FromContext(ctx).V(4).Info("Bundle does not share a pod", "bundle", m.name, "err", errs[i])
		}
		if m != w {
			m.keepPlace()
		}
	}
	if len(begun) == 0 {
		return 0, errs[0]
	}
	p, err := begun[0].createShared(ctx, begun)
	if err != nil {
		// Each finds that there is no pod, and goes on alone, which says what is in the way.
		klog.FromContext(ctx).Info("No pod for several bundles", "bundles", len(begun), "namespace", w.name.Namespace, "err", err)
		return 0, errs[0]
	}
	sharedPods.Inc()
	// Where it fails the bundle's next turn does it.
	w.each(ctx, begun, func(m *work) error { return m.recordUID(ctx, p.UID) })
	return 0, errs[0]
}

// company looks at the bundles that are to share the pod, and leaves out those that want it no more.
func (w *work) company(ctx context.Context, names []cache.ObjectName) []*work {
	kind := w.ownKind()
	var members []*work
	for _, name := range names {
		b, err := w.bundles.Bundles(name.Namespace).Get(name.Name)
		if err == nil && b.DeletionTimestamp == nil {
			m := &work{term: w.term, name: name, bundle: b, now: w.now}
			var h *hold
			if err = m.findClass(); err == nil {
				h, err = m.hold(ctx)
			}
			if err == nil && h == nil && !m.unpacked() && (!open(b.Status.Unpack) || m.shares()) && m.ownKind() == kind {
				members = append(members, m)
				continue
			}
		}
		w.free(name) // it is looked at again after this
	}
	return members
}

func (w *work) ownKind() string {
	mode, refused, err := w.mode()
	if err != nil || refused != nil {
		return ""
	}
	return w.kind(mode)
}

// each does something for several bundles at the same time, and returns the error of each.
func (t *term) each(ctx context.Context, members []*work, f func(*work) error) []error {
	errs := make([]error, len(members))
	var all sync.WaitGroup
	for i, m := range members {
		all.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					errs[i] = panicked(ctx, p, "a bundle", m.name)
				}
			}()
			errs[i] = f(m)
		})
	}
	all.Wait()
	return errs
}

// createShared makes the pod of attempts that have begun. The bundle is one of them.
func (w *work) createShared(ctx context.Context, members []*work) (*corev1.Pod, error) {
	endpoint := w.Server()
	if endpoint.URL == "" {
		return nil, errors.New("the address of this server's Service is not known yet")
	}
	secrets, err := w.accountSecrets(ctx)
	if err != nil {
		return nil, err
	}
	list, spans := make([]pod.Member, len(members)), make([]*newPod, len(members))
	for i, m := range members {
		spans[i] = m.traces.beginPod(ctx, m.bundle)
		list[i] = pod.Member{Bundle: m.bundle, Reference: m.reference(), TraceParent: spans[i].parent()}
	}
	p, err := pod.BuildShared(pod.Params{Class: w.class, Image: w.Image, Endpoint: endpoint, Key: w.Key, AccountSecrets: secrets}, list)
	if err == nil {
		p, err = w.Kube.CoreV1().Pods(w.name.Namespace).Create(ctx, p, metav1.CreateOptions{})
	}
	for _, span := range spans {
		span.created(p, err)
	}
	if err == nil && !pod.HasImage(p) {
		err = errors.New("the cluster does not know image volumes and dropped those of the pod")
	}
	return p, err
}

func (w *work) recordUID(ctx context.Context, uid types.UID) error {
	return w.save(ctx, func(s *v1alpha1.BundleStatus) { s.Unpack.PodUID = uid })
}

// shares tells whether the attempt that runs is one of a shared pod.
func (w *work) shares() bool { return pod.IsShared(w.name.Name, w.bundle.Status.Unpack) }

// proceedShared goes on with an attempt of a shared pod.
func (w *work) proceedShared(ctx context.Context) (time.Duration, error) {
	u := w.bundle.Status.Unpack
	if w.launches.has(u.PodName) {
		return 0, nil
	}
	p, err := w.sharedPod(ctx, u)
	if err != nil {
		return 0, err
	}
	if p == nil || !pod.HasImage(p) {
		return w.apart(ctx, false)
	}
	if u.PodUID == "" {
		if err := w.recordUID(ctx, p.UID); err != nil {
			return 0, err
		}
	}
	switch o := w.outcome(p); {
	case o.State == pod.Succeeded, o.State == pod.Failed:
		// The commit comes before the exit. If only the cache does not know yet, the next write fails for a conflict.
		return w.apart(ctx, false)
	case o.Failing:
		return w.apart(ctx, pod.BlamesOthers(p, w.reference()))
	case o.State == pod.Waiting && o.Reason == "":
		return w.quietShared(ctx, p)
	case o.Reason == v1alpha1.ReasonImagePullThrottled && w.now.Sub(u.StartTime.Time) < quietAfter:
		return quietAfter, nil // it is over soon, and all of the pod would have to say so
	case o.Reason == v1alpha1.ReasonUnschedulable:
		return w.unscheduled(ctx, p, o)
	default:
		return 0, w.say(ctx, o.Reason, o.Message)
	}
}

// quietShared asks the events of a shared pod that does not get on. What they say about an image is said of no bundle:
// it may be another's.
func (w *work) quietShared(ctx context.Context, p *corev1.Pod) (time.Duration, error) {
	hint, again := w.hint(ctx, p)
	if hint == "" {
		return again, nil
	}
	if o := pod.JudgeEvent(hint); o.Reason == v1alpha1.ReasonImagePullThrottled {
		return again, w.say(ctx, o.Reason, o.Message)
	}
	return w.apart(ctx, pod.Blames(p, hint, w.reference()))
}

// sharedPod returns the pod of an attempt, which before its UID is recorded is the one with its name and its
// proof, or nil when there is none.
func (w *work) sharedPod(ctx context.Context, u *v1alpha1.UnpackStatus) (*corev1.Pod, error) {
	if u.PodUID != "" {
		return w.currentPod(ctx, u)
	}
	p, err := w.Kube.CoreV1().Pods(w.name.Namespace).Get(ctx, u.PodName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	made, err := pod.MadeFor(w.Key, p)
	if err != nil || !slices.Contains(made, pod.Owned{Attempt: pod.AttemptOf(w.bundle), Name: w.name.Name}) {
		return nil, nil
	}
	return p, nil
}

// apart lets a bundle whose shared pod has not brought its content go on as soon as it has another place: alone, unless
// the image of another bundle is known to be what was amiss.
func (w *work) apart(ctx context.Context, innocent bool) (time.Duration, error) {
	u := w.bundle.Status.Unpack
	claim := w.claim(u.Mode)
	if innocent && u.Attempt <= sharedAgain {
		claim.Kind = w.ownKind()
		claim.Leave = claim.Kind != ""
	}
	turn := w.ask(claim)
	switch {
	case !turn.Come && claim.Leave:
		return w.standBack(ctx, turn, v1alpha1.ReasonQueued, "the image of another bundle kept the pod that they shared from starting")
	case !turn.Come:
		return w.standBack(ctx, turn, v1alpha1.ReasonPodFailed, "the pod that it shared with others did not bring its content")
	case len(turn.With) > 0:
		return w.share(ctx, turn.With)
	}
	apart.Inc()
	return w.launch(ctx, u.Failures, w.task())
}

// launches are the shared pods that are just being made.
type launches struct {
	mu    sync.Mutex
	names map[string]struct{}
}

func (l *launches) begin(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.names == nil {
		l.names = map[string]struct{}{}
	}
	l.names[name] = struct{}{}
}

func (l *launches) end(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.names, name)
}

func (l *launches) has(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.names[name]
	return ok
}
