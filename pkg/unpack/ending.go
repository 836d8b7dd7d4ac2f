// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/unpack/pod"
	"rukpak.io/apiserver/pkg/unpack/queue"
)

// endingTime is how long a pod counts after it was to have ended, if it does not. A kubelet does not end one before the runtime gives up
// pulling its image, which takes containerd five minutes if no byte comes. Of a node that is lost no pod ends.
const endingTime = 10 * time.Minute

// hangTime is how long a pod that never starts has to be there to be one that hung. Most start within seconds.
const hangTime = time.Minute

// learn tells the queue how the pods of a namespace fare, each once: whether it started, or hung: it took room on a node from others for long,
// and had not started when it was told to end. Of one that waits for a node, or of which the node says what is amiss, it is not that.
func (t *term) learn(before, p *corev1.Pod) {
	if before == nil || pod.IsLook(p) || hasRun(before) {
		return
	}
	now := time.Now()
	switch {
	case hasRun(p):
		t.fares(p.Namespace)
	case before.DeletionTimestamp == nil && p.DeletionTimestamp != nil && p.Spec.NodeName != "" &&
		now.Sub(p.CreationTimestamp.Time) >= hangTime && pod.Judge(before).Reason == "":
		may := t.places.Hung(p.Namespace, now)
		narrowed.Set(float64(t.places.Narrowed()))
		klog.Background().Info("Pod hung, so its namespace may have fewer", "pod", klog.KObj(p), "unpackPods", may)
	}
}

func hasRun(p *corev1.Pod) bool { return !pod.TimesOf(p).Started.IsZero() }

// fares tells the queue that a pod of a namespace has started, or that it was done without one.
func (t *term) fares(namespace string) {
	t.places.Started(namespace, time.Now())
	narrowed.Set(float64(t.places.Narrowed()))
}

// occupy keeps the place of a pod until the pod is gone or has ended, whatever becomes of the attempts that it was made for: its
// node keeps it until then.
func (t *term) occupy(p *corev1.Pod) {
	ending := p.DeletionTimestamp != nil
	switch {
	case p.Status.Phase == corev1.PodSucceeded, p.Status.Phase == corev1.PodFailed, ending && p.Spec.NodeName == "":
		t.vacate(p)
	case !ending:
		t.placesOf(p).Occupy(p.Namespace, p.Name)
	default:
		// The time is that of the API server, whose clock may be another.
		left := min(time.Until(p.DeletionTimestamp.Add(endingTime)), endingTime)
		if left <= 0 {
			t.vacate(p)
			return
		}
		t.placesOf(p).Occupy(p.Namespace, p.Name)
		t.endings.begin(p.UID, left, func() { t.vacate(p) })
	}
}

func (t *term) vacate(p *corev1.Pod) {
	t.endings.end(p.UID)
	t.placesOf(p).Vacate(p.Namespace, p.Name, time.Now())
}

// placesOf are those that a pod has one of: looks have places of their own.
func (t *term) placesOf(p *corev1.Pod) *queue.Queue {
	if pod.IsLook(p) {
		return t.looks.places
	}
	return t.places
}

// endings are the pods that were told to end and have not.
type endings struct {
	mu     sync.Mutex
	timers map[types.UID]*time.Timer // nil once the term is over
}

// begin calls over after a time, unless end is called before. It is about the first call for a pod alone.
func (e *endings) begin(uid types.UID, left time.Duration, over func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.timers[uid]; !ok && e.timers != nil {
		e.timers[uid] = time.AfterFunc(left, over)
	}
}

func (e *endings) end(uid types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if timer, ok := e.timers[uid]; ok {
		timer.Stop()
		delete(e.timers, uid)
	}
}

// stop ends all, and what begins later does not.
func (e *endings) stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, timer := range e.timers {
		timer.Stop()
	}
	e.timers = nil
}
