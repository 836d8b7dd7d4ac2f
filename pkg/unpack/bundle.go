// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// work is one look at one bundle.
type work struct {
	*term
	name cache.ObjectName
	// bundle is as the cache has it, or as the last write returned it. It is replaced
	// and never changed.
	bundle *v1alpha1.Bundle
	// class is nil where there is none.
	class *v1alpha1.ProvisionerClass
	now   time.Time
	// looking is set while a look for what the reference names goes on, or waits for its turn.
	looking bool
	// podName is that of the shared pod that the next attempt is for, or empty.
	podName string
	// waits means that the bundle is in the queue.
	waits bool
	// lends means that others may have the bundle's place beside it.
	lends bool
}

// reconcile does what there is to do for a bundle now, and returns after which time
// to look again, if nothing happens before. 0 means that only an event brings more to do.
func (t *term) reconcile(ctx context.Context, name cache.ObjectName) (time.Duration, error) {
	b, err := t.bundles.Bundles(name.Namespace).Get(name.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, err
	}
	if err != nil || b.DeletionTimestamp != nil {
		t.direct.stop(name, "")
		t.looks.end(name)
		t.finds.forget(name)
		t.free(name)
		return 0, t.sweep(ctx, name, nil)
	}
	w := &work{term: t, name: name, bundle: b, now: time.Now()}
	after, err := w.do(ctx)
	// Whatever became of it: what the status does not name any more has to go.
	keep := ""
	if u := w.bundle.Status.Unpack; open(u) {
		keep = u.Nonce
	}
	t.direct.stop(name, keep)
	if !w.looking {
		t.looks.end(name)
	}
	if err == nil {
		w.keepPlace()
		if !w.waits {
			t.finds.forget(name)
		}
	}
	if sweepErr := t.sweep(ctx, name, w.bundle); err == nil {
		err = sweepErr
	}
	return after, err
}

func (w *work) do(ctx context.Context) (time.Duration, error) {
	if err := w.findClass(); err != nil {
		return 0, err
	}
	if w.unpacked() && !open(w.bundle.Status.Unpack) {
		return w.settle(ctx)
	}
	h, err := w.hold(ctx)
	switch {
	case err != nil:
		return 0, err
	case h == nil:
		return w.unpack(ctx)
	case h.reason == "":
		return 0, nil
	}
	return 0, w.rest(ctx, *h)
}

func (w *work) findClass() error {
	class, err := w.classes.Get(w.bundle.Spec.ProvisionerClassName)
	if apierrors.IsNotFound(err) {
		return nil
	}
	w.class = class
	return err
}

// unpacked tells whether the content of this generation is there.
func (w *work) unpacked() bool {
	s := &w.bundle.Status
	return w.hasContent() && meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionUnpacked) && !w.lost() && !w.handedOver()
}

// hasContent tells whether there was content of this generation, which may be lost.
func (w *work) hasContent() bool {
	c := w.bundle.Status.Content
	return c != nil && c.Generation == w.bundle.Generation
}

// handedOver tells whether the class is not that of the provisioner who has taken the content: it was deleted, and made anew
// for another one, whose word on the content nobody has.
func (w *work) handedOver() bool {
	before := w.bundle.Status.Provisioner
	return w.class != nil && before != "" && before != w.class.Provisioner
}

// lost tells whether there was content whose bytes are gone.
func (w *work) lost() bool {
	c := meta.FindStatusCondition(w.bundle.Status.Conditions, v1alpha1.ConditionContentAvailable)
	return w.bundle.Status.Content != nil && c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonContentLost
}

// retryAsked tells whether the annotation rukpak.io/retry has a value that has not been handled.
func (w *work) retryAsked() bool {
	return asked(w.bundle.Annotations[v1alpha1.AnnotationRetry], w.bundle.Status.LastHandledRetry)
}

// hold says why no attempt is to be made. An empty reason means that there is
// nothing to say, since another event is on its way.
type hold struct{ reason, message string }

// hold finds the class and returns nil when attempts are to be made.
func (w *work) hold(ctx context.Context) (*hold, error) {
	name := w.bundle.Spec.ProvisionerClassName
	if name == "" {
		return w.chooseClass(ctx)
	}
	switch {
	case w.class == nil:
		return &hold{v1alpha1.ReasonClassMissing, fmt.Sprintf("ProvisionerClass %q does not exist", name)}, nil
	case foreign(w.class):
		return &hold{v1alpha1.ReasonWaitingForProvisioner, fmt.Sprintf("provisioner %q has yet to act", w.class.Provisioner)}, nil
	case w.bundle.Spec.Suspend:
		return &hold{v1alpha1.ReasonSuspended, "spec.suspend is set"}, nil
	case w.bundle.Spec.Source.Type == v1alpha1.SourceTypeUpload && w.lost() && w.bundle.Status.Content.Generation == w.bundle.Generation:
		return &hold{v1alpha1.ReasonContentLost, "the stored bytes of " + w.bundle.Status.Content.Digest + " are gone: write the content to the subresource content again"}, nil
	case w.bundle.Spec.Source.Type == v1alpha1.SourceTypeUpload:
		return &hold{v1alpha1.ReasonWaitingForUpload, "the content has yet to be written to the subresource content"}, nil
	case w.bundle.Spec.Source.Image == nil:
		return nil, fmt.Errorf("source type %q has no image", w.bundle.Spec.Source.Type)
	}
	if w.full(ctx) {
		return &hold{v1alpha1.ReasonStorageFull, conditions.MessageStorageFull}, nil
	}
	return nil, nil
}

// foreign tells whether bundles of a class are another controller's.
func foreign(class *v1alpha1.ProvisionerClass) bool {
	return class.Provisioner != v1alpha1.ProvisionerRaw && class.Provisioner != v1alpha1.ProvisionerPlain
}

// chooseClass fills in the default class, once there is one.
func (w *work) chooseClass(ctx context.Context) (*hold, error) {
	classes, err := w.classes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	class := v1alpha1.DefaultClass(classes)
	if class == nil {
		return &hold{v1alpha1.ReasonClassMissing, "spec.provisionerClassName is empty and there is no default class: " +
			"name a class, or annotate one with " + v1alpha1.AnnotationIsDefaultClass + `: "true"`}, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": w.bundle.UID, "resourceVersion": w.bundle.ResourceVersion},
		"spec":     map[string]any{"provisionerClassName": class.Name},
	})
	if err != nil {
		return nil, err
	}
	_, err = w.Bundles.RukpakV1alpha1().Bundles(w.name.Namespace).Patch(ctx, w.name.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return &hold{}, err
}

// rest ends a running attempt and says why there is none. Content that is there
// stays as it is. What another provisioner says about its bundle is not overwritten.
func (w *work) rest(ctx context.Context, h hold) error {
	theirs := h.reason == v1alpha1.ReasonWaitingForProvisioner
	return w.save(ctx, func(s *v1alpha1.BundleStatus) {
		if u := s.Unpack; open(u) {
			u.EndTime = &metav1.Time{Time: w.now}
			u.Reason, u.Message = h.reason, h.message
			if r := s.Refresh; u.Refresh && r != nil {
				r.NextTime = u.EndTime // as soon as it may be
			}
		}
		if h.reason == v1alpha1.ReasonStorageFull {
			// Whoever asked for a retry gets it once there is room.
			conditions.SetStorageFull(&s.Conditions, w.bundle.Generation, true)
		} else if w.retryAsked() {
			s.LastHandledRetry = echo(w.bundle.Annotations[v1alpha1.AnnotationRetry])
		}
		if w.unpacked() || theirs && !ours(s.Conditions) && !w.handedOver() {
			return
		}
		status := metav1.ConditionUnknown
		if h.reason == v1alpha1.ReasonContentLost {
			status = metav1.ConditionFalse // nothing happens by itself
		}
		conditions.SetProgress(&s.Conditions, w.bundle.Generation, status, h.reason, h.message)
		conditions.SetStalled(&s.Conditions, w.bundle.Generation, false, v1alpha1.ReasonProgressing, "")
	})
}

// ours tells whether what is said about progress was said by this server, before
// another provisioner had its turn.
func ours(list []metav1.Condition) bool {
	c := meta.FindStatusCondition(list, v1alpha1.ConditionUnpacked)
	if c == nil {
		return true
	}
	switch c.Reason {
	case v1alpha1.ReasonPending, v1alpha1.ReasonWaitingForProvisioner, v1alpha1.ReasonClassMissing:
		return true
	}
	return false
}

// save writes the status when mutate changes it. An error for which
// apierrors.IsConflict holds means that the bundle is not what it was.
func (w *work) save(ctx context.Context, mutate func(*v1alpha1.BundleStatus)) error {
	b := w.bundle.DeepCopy()
	mutate(&b.Status)
	b.Status.ObservedGeneration = b.Generation
	if w.class != nil {
		b.Status.Provisioner = w.class.Provisioner
	}
	if equality.Semantic.DeepEqual(b.Status, w.bundle.Status) {
		return nil
	}
	updated, err := w.Bundles.RukpakV1alpha1().Bundles(b.Namespace).UpdateStatus(ctx, b, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	w.bundle = updated
	return nil
}

// open tells whether an attempt is running.
func open(u *v1alpha1.UnpackStatus) bool {
	return u != nil && u.Nonce != "" && u.EndTime == nil
}
