// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/failpoint"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

// quietAfter is how long a pod may do nothing, without a word of why, until its
// events are asked.
const quietAfter = 15 * time.Second

// proceedPod sees to it that the attempt has its pod, and judges it.
func (w *work) proceedPod(ctx context.Context) (time.Duration, error) {
	if w.shares() {
		return w.proceedShared(ctx)
	}
	u := w.bundle.Status.Unpack
	if u.PodUID == "" {
		return w.createPod(ctx)
	}
	p, err := w.currentPod(ctx, u)
	if err != nil {
		return 0, err
	}
	if p == nil {
		if v := w.notes.disruption(u.Nonce); v != nil {
			return w.fail(ctx, *v)
		}
		return w.fail(ctx, verdict{reason: v1alpha1.ReasonPodDeleted, message: "the pod was deleted before it was done"})
	}
	return w.judge(ctx, p)
}

// currentPod returns the pod whose UID the attempt names, or nil when it is gone.
func (w *work) currentPod(ctx context.Context, u *v1alpha1.UnpackStatus) (*corev1.Pod, error) {
	obj, exists, err := w.pods.GetByKey(cache.NewObjectName(w.name.Namespace, u.PodName).String())
	if p, ok := obj.(*corev1.Pod); err == nil && exists && ok && p.UID == u.PodUID {
		return p, nil
	}
	// The cache may not have heard of it yet.
	p, err := w.Kube.CoreV1().Pods(w.name.Namespace).Get(ctx, u.PodName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && p.UID != u.PodUID {
		return nil, nil
	}
	return p, err
}

// createPod makes the attempt's pod and records its UID, which gives it the right to
// write. A pod that is there already is that of this attempt, made before a crash, or
// somebody else's, in which case the attempt is given up.
func (w *work) createPod(ctx context.Context) (time.Duration, error) {
	endpoint := w.Server()
	if endpoint.URL == "" {
		return w.putOff(ctx, v1alpha1.ReasonServerNotReady, errors.New("the address of this server's Service is not known yet"))
	}
	secrets, err := w.accountSecrets(ctx)
	if apierrors.IsNotFound(err) {
		return w.fail(ctx, accountMissing(err))
	}
	if err != nil {
		return w.putOff(ctx, v1alpha1.ReasonPodCreationFailed, err)
	}
	span := w.traces.beginPod(ctx, w.bundle)
	p, err := w.Kube.CoreV1().Pods(w.name.Namespace).Create(ctx, pod.Build(pod.Params{
		Bundle:    w.bundle,
		Class:     w.class,
		Reference: w.reference(),
		Image:     w.Image,
		Endpoint:  endpoint,
		Key:       w.Key,

		TraceParent:    span.parent(),
		AccountSecrets: secrets,
	}), metav1.CreateOptions{})
	span.created(p, err)
	if apierrors.IsAlreadyExists(err) {
		return w.adopt(ctx)
	}
	if err != nil {
		if v := refused(err, w.bundle.Status.Unpack.Mode); v != nil {
			return w.fail(ctx, *v)
		}
		return w.putOff(ctx, v1alpha1.ReasonPodCreationFailed, err)
	}
	failpoint.Hit("unpack/after-pod-create")
	if w.bundle.Status.Unpack.Mode == v1alpha1.UnpackModeImageVolume && !pod.HasImage(p) {
		return w.fail(ctx, verdict{reason: v1alpha1.ReasonImageVolumeUnsupported, message: "the cluster does not know image volumes and dropped that of the pod"})
	}
	return w.recordPod(ctx, p)
}

// accountSecrets are the pull secrets of the bundle's service account, where the pod has to name them.
func (w *work) accountSecrets(ctx context.Context) ([]corev1.LocalObjectReference, error) {
	if !pod.NamesSecrets(w.class, w.bundle) {
		return nil, nil
	}
	account, err := w.Kube.CoreV1().ServiceAccounts(w.name.Namespace).Get(ctx, pod.Account(w.bundle), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return account.ImagePullSecrets, nil
}

// putOff says why the pod is not there yet and returns the error, so that it is tried again.
func (w *work) putOff(ctx context.Context, reason string, cause error) (time.Duration, error) {
	if err := w.say(ctx, reason, pod.Words(cause.Error(), "")); err != nil {
		return 0, err
	}
	return 0, cause
}

func (w *work) adopt(ctx context.Context) (time.Duration, error) {
	name := w.bundle.Status.Unpack.PodName
	p, err := w.Kube.CoreV1().Pods(w.name.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return 0, fmt.Errorf("pod %s/%s: %w", w.name.Namespace, name, err)
	}
	made, err := pod.Made(w.Key, p)
	if err != nil || made != pod.AttemptOf(w.bundle) {
		return w.fail(ctx, verdict{
			reason:  v1alpha1.ReasonPodNameTaken,
			message: fmt.Sprintf("pod %s exists and was not made for this attempt", name),
			atOnce:  true,
		})
	}
	return w.recordPod(ctx, p)
}

func (w *work) recordPod(ctx context.Context, p *corev1.Pod) (time.Duration, error) {
	err := w.save(ctx, func(s *v1alpha1.BundleStatus) {
		s.Unpack.PodUID = p.UID
		if s.Unpack.Reason != "" {
			w.waitsFor(s, "", "") // it waited for its pod
		}
	})
	if err != nil {
		return 0, err
	}
	failpoint.Hit("unpack/after-uid-write")
	return w.judge(ctx, p)
}

// reference is the image to unpack: what the attempt has been found to take, or what the spec says.
func (w *work) reference() string {
	return cmp.Or(w.bundle.Status.Unpack.ResolvedReference, w.bundle.Spec.Source.Image.Reference)
}

// outcome is what a pod comes to. That its node has refused to pull more images for now is of matter to the pods of others.
func (w *work) outcome(p *corev1.Pod) pod.Outcome {
	o := pod.Judge(p)
	if o.Reason == v1alpha1.ReasonImagePullThrottled {
		w.pulls.refused(p.UID, w.now)
	}
	return o
}

// judge draws the conclusions from the state of the attempt's pod.
func (w *work) judge(ctx context.Context, p *corev1.Pod) (time.Duration, error) {
	switch o := w.outcome(p); {
	case o.State == pod.Succeeded:
		// The server's commit comes before the exit, and ends the attempt. If only the
		// cache does not know yet, this write fails for a conflict.
		return w.fail(ctx, verdict{reason: v1alpha1.ReasonContentNotCommitted, message: "the unpack program ended well and no content has come from it"})
	case o.State == pod.Failed:
		return w.fail(ctx, verdict{reason: o.Reason, message: o.Message})
	case o.Failing:
		return w.failing(ctx, p, o)
	case o.State == pod.Waiting && o.Reason == "":
		return w.quiet(ctx, p)
	case o.Reason == v1alpha1.ReasonUnschedulable:
		return w.unscheduled(ctx, p, o)
	default:
		return 0, w.say(ctx, o.Reason, o.Message)
	}
}

// failing gives the node some time to do better, and no more.
func (w *work) failing(ctx context.Context, p *corev1.Pod, o pod.Outcome) (time.Duration, error) {
	nonce := w.bundle.Status.Unpack.Nonce
	left := w.Backoff.ImageGrace - w.now.Sub(w.notes.failing(nonce, w.now))
	if left > 0 && !pod.Final(o.Reason) {
		return left, w.say(ctx, o.Reason, o.Message)
	}
	return w.fail(ctx, w.withHint(ctx, p, verdict{reason: o.Reason, message: o.Message}))
}

// withHint adds to why a pull failed that a pull secret is missing, if it is.
func (w *work) withHint(ctx context.Context, p *corev1.Pod, v verdict) verdict {
	if v.reason == v1alpha1.ReasonImagePullUnauthorized || v.reason == v1alpha1.ReasonImagePullFailed {
		if hint := w.warning(ctx, p, "FailedToRetrieveImagePullSecret"); hint != "" {
			return verdict{reason: v1alpha1.ReasonPullSecretMissing, message: v.message + "; " + hint}
		}
	}
	return v
}

// quiet asks the events of a pod that does not get on and does not say why, as when a
// volume cannot be mounted or the sandbox not be made.
func (w *work) quiet(ctx context.Context, p *corev1.Pod) (time.Duration, error) {
	hint, again := w.hint(ctx, p)
	if hint == "" {
		return again, nil
	}
	o := pod.JudgeEvent(hint)
	if o.State == pod.Failed {
		return w.fail(ctx, verdict{reason: o.Reason, message: o.Message})
	}
	return again, w.say(ctx, o.Reason, o.Message)
}

// hint returns what the node warns of about a pod that does not get on, once that is so for a while, and when to ask again.
// What the scheduler has to say of a pod without a node is on its way, in the status of the pod.
func (w *work) hint(ctx context.Context, p *corev1.Pod) (hint string, again time.Duration) {
	if since := w.now.Sub(w.bundle.Status.Unpack.StartTime.Time); since < quietAfter {
		return "", quietAfter - since
	}
	if p.Spec.NodeName == "" {
		return "", quietAfter
	}
	return w.warning(ctx, p, ""), quietAfter
}

// eventFailedScheduling is the reason of the scheduler's events, which stay when the pod has got its node.
const eventFailedScheduling = "FailedScheduling"

// warning returns the latest warning among the events of a pod, of one reason or of any.
// It is a hint: events may be gone, or not be ours to read.
func (w *work) warning(ctx context.Context, p *corev1.Pod, reason string) string {
	list, err := w.Kube.CoreV1().Events(p.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.uid=" + string(p.UID),
	})
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Events cannot be read", "pod", klog.KObj(p), "err", err)
		return ""
	}
	var latest *corev1.Event
	for i := range list.Items {
		e := &list.Items[i]
		if e.InvolvedObject.UID != p.UID || e.Type != corev1.EventTypeWarning || reason != "" && e.Reason != reason {
			continue
		}
		if e.Reason == eventFailedScheduling {
			continue // the pod has a node by now
		}
		if latest == nil || latest.LastTimestamp.Before(&e.LastTimestamp) {
			latest = e
		}
	}
	if latest == nil {
		return ""
	}
	return pod.Words(latest.Reason, latest.Message)
}

// sweep deletes the pods that this server made for a bundle and that its status does
// not name, or not any more. Without a bundle these are all.
func (t *term) sweep(ctx context.Context, name cache.ObjectName, b *v1alpha1.Bundle) error {
	if t.pods == nil {
		return nil
	}
	found, err := t.pods.ByIndex(indexOwner, name.String())
	if err != nil {
		return err
	}
	var failures []error
	for _, obj := range found {
		p, ok := obj.(*corev1.Pod)
		if !ok || p.DeletionTimestamp != nil {
			continue
		}
		made, err := pod.MadeFor(t.Key, p)
		if err != nil {
			continue // not ours to delete
		}
		superfluous, err := t.superfluous(ctx, name, b, made)
		if err == nil && superfluous {
			err = t.deletePod(ctx, p.Namespace, p.Name, p.UID)
		}
		if err != nil {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}

// superfluous tells whether none of the attempts that a pod was made for is one that runs. An attempt that has
// ended never runs again; about any other the cache may be behind, so the server is asked.
func (t *term) superfluous(ctx context.Context, name cache.ObjectName, b *v1alpha1.Bundle, made []pod.Owned) (bool, error) {
	if len(made) == 1 && made[0].Attempt.Number == pod.LookNumber {
		return t.lookIsOver(ctx, name, b, made[0].Attempt)
	}
	var unsure []pod.Owned
	for _, m := range made {
		known := b
		if m.Name != name.Name {
			// No bundle in the cache is as good as none that is known: the server is asked.
			known, _ = t.bundles.Bundles(name.Namespace).Get(m.Name)
		}
		switch {
		case known == nil:
			unsure = append(unsure, m)
		case runs(known, m.Attempt):
			return false, nil
		case pod.AttemptOf(known) != m.Attempt && !pod.AttemptOf(known).After(m.Attempt):
			unsure = append(unsure, m)
		}
	}
	for _, m := range unsure {
		live, err := t.Bundles.RukpakV1alpha1().Bundles(name.Namespace).Get(ctx, m.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return false, err
		}
		if runs(live, m.Attempt) {
			return false, nil
		}
	}
	return true, nil
}

// runs tells whether an attempt is the one that a bundle has running.
func runs(b *v1alpha1.Bundle, attempt pod.Attempt) bool {
	return b.DeletionTimestamp == nil && pod.AttemptOf(b) == attempt && open(b.Status.Unpack)
}

func (t *term) deletePod(ctx context.Context, namespace, name string, uid types.UID) error {
	err := t.Kube.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	// A conflict means that another pod has the name by now.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s/%s: %w", namespace, name, err)
	}
	failpoint.Hit("unpack/after-pod-delete")
	return nil
}
