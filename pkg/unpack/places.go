// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/pod"
	"rukpak.io/apiserver/pkg/unpack/queue"
)

const (
	// quietWait is how long a bundle waits for a place before it says so. Most wait less.
	quietWait = 2 * time.Second
	// tellEvery is the least time between two times that a bundle says which one it is of those that wait, and
	// tellRate how many bundles say so in a second, however many wait.
	tellEvery = 30 * time.Second
	tellRate  = 5
)

// place sees to it that a bundle has a place before its attempt begins. Go on means that the attempt begins now, and
// that the bundle has the place alone; else all that there is to do for it now has been done.
func (w *work) place(ctx context.Context) (goOn bool, after time.Duration, err error) {
	mode, refused, err := w.mode()
	if err != nil {
		return false, 0, err
	}
	if refused != nil {
		return true, 0, nil // its attempt ends where it begins, and takes no place
	}
	claim := w.claim(mode)
	// What begins anew in place of what runs does not wait for others to come.
	if !open(w.bundle.Status.Unpack) || w.shares() {
		claim.Kind = w.kind(mode)
	}
	turn := w.ask(claim)
	switch {
	case !turn.Come:
		after, err = w.waitTurn(ctx, turn)
		return false, after, err
	case len(turn.With) > 0:
		after, err = w.share(ctx, turn.With)
		return false, after, err
	}
	return true, 0, nil
}

// claim is what the bundle asks for, to have it alone.
func (w *work) claim(mode v1alpha1.UnpackMode) queue.Claim {
	image := w.bundle.Spec.Source.Image
	return queue.Claim{
		Since: w.since(), Image: image.Reference, Pulled: mode != v1alpha1.UnpackModeDirect && image.PullPolicy != corev1.PullNever,
		Hung: hung(w.bundle) && !w.retryAsked() && !w.classChanged(),
	}
}

func (w *work) ask(claim queue.Claim) queue.Turn {
	turn := w.places.Ask(w.name, claim, w.now)
	queued.Set(float64(w.places.Waiting()))
	if turn.Come {
		w.told.forget(w.name)
	}
	return turn
}

// kind is what the bundle has in common with those that may share its pod. One with which something is amiss has a
// pod of its own, which tells what it is; and so has one that had content, for it may take another image than its spec names.
func (w *work) kind(mode v1alpha1.UnpackMode) string {
	if u := w.bundle.Status.Unpack; u != nil && u.Generation == w.bundle.Generation && (u.Failures > 0 || w.spoilt(u)) || w.retryAsked() || w.hasContent() {
		return ""
	}
	return pod.ShareKind(w.class, w.bundle, mode, w.bundle.Spec.Source.Image.Reference)
}

// since is from when on there is something to do for a bundle, as its status has it. Who asks for a retry before the next
// attempt is due does not wait behind all others for it.
func (w *work) since() time.Time {
	since := w.bundle.CreationTimestamp.Time
	if c := meta.FindStatusCondition(w.bundle.Status.Conditions, v1alpha1.ConditionUnpacked); c != nil && c.LastTransitionTime.After(since) {
		since = c.LastTransitionTime.Time
	}
	if u := w.bundle.Status.Unpack; u != nil && u.NextAttemptTime != nil && u.NextAttemptTime.After(since) && !u.NextAttemptTime.After(w.now) {
		since = u.NextAttemptTime.Time
	}
	return since
}

// waitTurn says that a bundle waits for a place, and which one it is of how many: not when that changes, which is with
// every bundle that comes and goes, but seldom enough that all who wait together write little.
func (w *work) waitTurn(ctx context.Context, turn queue.Turn) (time.Duration, error) {
	w.waits = true
	if open(w.bundle.Status.Unpack) {
		return w.standBack(ctx, turn, v1alpha1.ReasonQueued, "it is to begin anew")
	}
	if turn.Waited < quietWait {
		return sooner(turn.Again, quietWait-turn.Waited), nil
	}
	every := max(tellEvery, time.Duration(w.places.Waiting())*time.Second/tellRate)
	if left := w.told.get(w.name).Add(every).Sub(w.now); left > 0 {
		return sooner(turn.Again, left), nil
	}
	position, of := w.places.Position(w.name)
	if position == 0 {
		return turn.Again, nil // it goes with another one
	}
	if err := w.sayQueued(ctx, w.turnOf(position, of)); err != nil {
		return 0, err
	}
	w.told.set(w.name, w.now)
	return sooner(turn.Again, every), nil
}

// turnOf says which of those that wait a bundle is, and for how many places if they are few since pods hang.
func (w *work) turnOf(position, of int) string {
	turn := fmt.Sprintf("waits for its turn: %d of %d in this namespace at %s", position, of, w.now.UTC().Format(time.TimeOnly))
	if window, narrow := w.places.Window(w.name.Namespace); narrow {
		turn += fmt.Sprintf("; %d at a time, since pods of the namespace did not start", window)
	}
	return turn
}

// hung tells whether the last attempt of a bundle, as it is now, was not done in its time, and nothing else is known of why.
func hung(b *v1alpha1.Bundle) bool {
	u := b.Status.Unpack
	return u != nil && u.Generation == b.Generation && u.Failures > 0 && u.Reason == v1alpha1.ReasonDeadlineExceeded
}

// saysQueued tells whether the conditions say that the bundle waits. What is said of content that is served, or of many failures,
// stays.
func (w *work) saysQueued(u *v1alpha1.UnpackStatus) bool {
	return !w.unpacked() && (u == nil || u.Generation != w.bundle.Generation || u.Failures <= w.backoffLimit())
}

func (w *work) sayQueued(ctx context.Context, message string) error {
	u := w.bundle.Status.Unpack
	if !w.saysQueued(u) {
		return nil
	}
	message += w.lastWords(u)
	return w.save(ctx, func(s *v1alpha1.BundleStatus) {
		conditions.SetProgress(&s.Conditions, w.bundle.Generation, metav1.ConditionUnknown, v1alpha1.ReasonQueued, message)
		conditions.SetStalled(&s.Conditions, w.bundle.Generation, false, v1alpha1.ReasonProgressing, "")
	})
}

// keepPlace tells the queue what has become of a bundle.
func (w *work) keepPlace() {
	switch u := w.bundle.Status.Unpack; {
	case w.waits, w.lends:
	case open(u):
		w.places.Hold(w.name, placeOf(u), w.now)
	default:
		w.free(w.name)
	}
	queued.Set(float64(w.places.Waiting()))
}

// free gives up a bundle's place, or that it waits for one.
func (t *term) free(name cache.ObjectName) {
	t.places.Leave(name, time.Now())
	t.told.forget(name)
	queued.Set(float64(t.places.Waiting()))
}

// placeOf is the place of an attempt: that of its pod, or of itself.
func placeOf(u *v1alpha1.UnpackStatus) string { return cmp.Or(u.PodName, u.Nonce) }

// memory is what is remembered of bundles, by their names.
type memory[V any] struct {
	mu     sync.Mutex
	byName map[cache.ObjectName]V
}

// get returns the zero value for a bundle of which nothing is remembered.
func (m *memory[V]) get(name cache.ObjectName) V {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byName[name]
}

func (m *memory[V]) set(name cache.ObjectName, value V) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byName == nil {
		m.byName = map[cache.ObjectName]V{}
	}
	m.byName[name] = value
}

func (m *memory[V]) forget(name cache.ObjectName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byName, name)
}
