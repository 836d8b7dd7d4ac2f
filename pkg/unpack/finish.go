// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/pod"
	"rukpak.io/apiserver/pkg/unpack/stage"
)

// Results of attempts.
const (
	resultSucceeded = "succeeded"
	resultFailed    = "failed"
	resultCancelled = "cancelled"
)

// finished counts an attempt, tells the log and the trace of it, and forgets it. The bundle is as it was when the attempt
// was seen to have ended; u is the attempt, which may have been superseded.
func (t *term) finished(b *v1alpha1.Bundle, u *v1alpha1.UnpackStatus, result, reason string, end time.Time) {
	attempts.WithLabelValues(result, reason).Inc()
	began := t.notes.drop(u.Nonce)
	if began.IsZero() && u.StartTime != nil {
		began = u.StartTime.Time
	}
	took := max(end.Sub(began), 0)
	if !began.IsZero() {
		attemptSeconds.WithLabelValues(result, string(u.Mode)).Observe(took.Seconds())
	}
	t.traces.end(b, u, result, reason, began, end)

	line := []any{"bundle", klog.KObj(b), "uid", b.UID, "generation", u.Generation, "attempt", u.Attempt, "mode", u.Mode, "result", result, "seconds", took.Seconds()}
	if p := t.podOf(b, u); p != nil {
		times := pod.TimesOf(p)
		if d, ok := times.Scheduling(); ok {
			line = append(line, "schedulingSeconds", d.Seconds())
		}
		if d, ok := times.Pull(); ok {
			line = append(line, "pullSeconds", d.Seconds())
		}
		line = append(line, "node", p.Spec.NodeName)
	}
	spent := t.Stages.Of(u.Nonce)
	for _, s := range []stage.Stage{stage.Walk, stage.Upload, stage.Commit} {
		if d, ok := spent[s]; ok {
			line = append(line, string(s)+"Seconds", d.Seconds())
		}
	}
	if content := b.Status.Content; result == resultSucceeded && content != nil {
		line = append(line, "bytes", content.Size, "files", content.Files, "digest", content.Digest)
	}
	if reason != "" {
		line = append(line, "reason", reason, "message", u.Message)
	}
	klog.Background().Info("Attempt ended", line...)
}

// podOf is the pod of an attempt, as far as it is known and there.
func (t *term) podOf(b *v1alpha1.Bundle, u *v1alpha1.UnpackStatus) *corev1.Pod {
	if t.pods == nil || u.PodUID == "" {
		return nil
	}
	obj, exists, err := t.pods.GetByKey(cache.NewObjectName(b.Namespace, u.PodName).String())
	if p, ok := obj.(*corev1.Pod); err == nil && exists && ok && p.UID == u.PodUID {
		return p
	}
	return nil
}

// podHandler enqueues the bundles of pods that change, counts the pods that there are, and learns from the last that is
// heard of one what its time went to. An informer calls a handler from one goroutine.
func (t *term) podHandler() cache.ResourceEventHandler {
	look := func(obj any, gone bool) {
		if unseen, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = unseen.Obj
		}
		p, ok := obj.(*corev1.Pod)
		if !ok {
			return
		}
		_, err := pod.MadeFor(t.Key, p)
		switch {
		case gone || err != nil:
			if t.ownPods.remove(p.UID) {
				t.vacate(p)
				if gone {
					t.podGone(p)
				}
			}
		default:
			t.learn(t.ownPods.put(p), p)
			t.occupy(p)
		}
		podsInFlight.Set(float64(t.ownPods.count()))
		t.enqueueOwner(p)
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { look(obj, false) },
		UpdateFunc: func(before, obj any) {
			// Between two lists a pod can have gone, and another come under its name.
			old, _ := before.(*corev1.Pod)
			if p, ok := obj.(*corev1.Pod); ok && old != nil && p.UID != old.UID {
				look(old, true)
			}
			look(obj, false)
		},
		DeleteFunc: func(obj any) { look(obj, true) },
	}
}

func (t *term) podGone(p *corev1.Pod) {
	times := pod.TimesOf(p)
	if d, ok := times.Scheduling(); ok {
		stage.Observe(stage.Scheduling, d)
	}
	if d, ok := times.Pull(); ok {
		stage.Observe(stage.Pull, d)
	}
	t.traces.endPod(p.UID, times)
}

// ownPods are those that this server has made, as they are known to be. Others may have their labels, any number of them.
type ownPods struct {
	mu    sync.Mutex
	byUID map[types.UID]*corev1.Pod
}

// put returns the pod as it was before, nil if it was not known.
func (o *ownPods) put(p *corev1.Pod) *corev1.Pod {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byUID == nil {
		o.byUID = map[types.UID]*corev1.Pod{}
	}
	before := o.byUID[p.UID]
	o.byUID[p.UID] = p
	return before
}

// remove reports whether there was such a pod.
func (o *ownPods) remove(uid types.UID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, known := o.byUID[uid]
	delete(o.byUID, uid)
	return known
}

func (o *ownPods) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.byUID)
}

func (o *ownPods) all() []*corev1.Pod {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Values(o.byUID))
}
