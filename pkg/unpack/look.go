// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/platform"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

// lookTimeout bounds a look of mode Direct.
const lookTimeout = time.Minute

// lookNonce is the name of the look that a status asks for: whoever computes it gets the same, until the look is
// written down, and nobody without the key can tell it beforehand.
func (t *term) lookNonce(b *v1alpha1.Bundle) string {
	h := hmac.New(sha256.New, t.Key)
	last, failures := int64(0), int32(0)
	if r := b.Status.Refresh; r != nil {
		failures = r.Failures
		if r.LastTime != nil {
			last = r.LastTime.Unix()
		}
	}
	attempt := ""
	if u := b.Status.Unpack; u != nil {
		attempt = u.Nonce
	}
	fmt.Fprintf(h, "rukpak.io/look v1\n%s\n%d\n%d\n%d\n%s\n%q\n%q", b.UID, b.Generation, last, failures, attempt,
		b.Annotations[v1alpha1.AnnotationRefresh], b.Status.LastHandledRefresh)
	return pod.NonceOf(h.Sum(nil))
}

// looksFor tells whether a look of that name is to run for a bundle.
func (t *term) looksFor(b *v1alpha1.Bundle, nonce string) bool {
	w := &work{term: t, bundle: b, now: time.Now()}
	if w.findClass() != nil {
		return false
	}
	if b.DeletionTimestamp != nil || b.Spec.Suspend || open(b.Status.Unpack) || !w.unpacked() {
		return false
	}
	wait, wanted := w.untilLook()
	return wanted && wait == 0 && t.lookNonce(b) == nonce
}

// lookPod has a node look the reference up: a pod that does nothing runs in the image.
func (w *work) lookPod(ctx context.Context, mode v1alpha1.UnpackMode) (finding, error) {
	nonce := w.lookNonce(w.bundle)
	name := pod.Name(w.name.Name, nonce)
	obj, _, err := w.pods.GetByKey(cache.NewObjectName(w.name.Namespace, name).String())
	if err != nil {
		return finding{}, err
	}
	p, there := obj.(*corev1.Pod)
	if !w.looks.begin(w.name, name, there) {
		return finding{}, nil // it is its turn when another has ended
	}
	target, refused := w.platform(mode)
	if refused != nil {
		return finding{failure: refused}, nil
	}
	if !there {
		p, refused, err = w.makeLook(ctx, mode, target, nonce, name)
	}
	switch {
	case err != nil:
		return finding{}, err
	case refused != nil:
		return finding{failure: refused}, nil
	case p == nil:
		// The bundle has changed, and the cache has yet to hear of it: nothing is to be concluded from it.
		return finding{}, apierrors.NewConflict(v1alpha1.Resource("bundles"), w.name.Name, errors.New("it is not as it was"))
	}
	if made, err := pod.Made(w.Key, p); err != nil || made.Nonce != nonce {
		return finding{failure: &verdict{reason: v1alpha1.ReasonPodNameTaken, message: fmt.Sprintf("pod %s exists and was not made to look up the image", p.Name)}}, nil
	}
	if found := pod.Looked(p, w.bundle.Spec.Source.Image.Reference); found != "" {
		return finding{reference: found}, nil
	}
	return w.judgeLook(ctx, p, nonce, target), nil
}

// makeLook makes the pod of a look, or returns why the cluster does not let it be. Both are nil when there is to be none any more.
func (w *work) makeLook(ctx context.Context, mode v1alpha1.UnpackMode, target platform.Platform, nonce, name string) (*corev1.Pod, *verdict, error) {
	live, err := w.Bundles.RukpakV1alpha1().Bundles(w.name.Namespace).Get(ctx, w.name.Name, metav1.GetOptions{})
	if err != nil || live.UID != w.bundle.UID || !w.looksFor(live, nonce) {
		return nil, nil, ignoreNotFound(err)
	}
	secrets, err := w.accountSecrets(ctx)
	if apierrors.IsNotFound(err) {
		missing := accountMissing(err)
		return nil, &missing, nil
	}
	if err != nil {
		return nil, nil, err
	}
	b := live.DeepCopy()
	b.Status.Unpack = &v1alpha1.UnpackStatus{Generation: b.Generation, Attempt: pod.LookNumber, Nonce: nonce, Mode: mode, Platform: target.String(), PodName: name}
	p, err := w.Kube.CoreV1().Pods(w.name.Namespace).Create(ctx, pod.Look(pod.Params{
		Bundle: b, Class: w.class, Reference: b.Spec.Source.Image.Reference, Image: w.Image, Key: w.Key, AccountSecrets: secrets,
	}), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		p, err = w.Kube.CoreV1().Pods(w.name.Namespace).Get(ctx, name, metav1.GetOptions{})
	} else if err != nil {
		if v := refused(err, mode); v != nil {
			return nil, v, nil
		}
	}
	if err != nil {
		return nil, nil, err
	}
	return p, nil, nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// judgeLook draws the conclusions from a pod that has not found anything yet. It gets as much time as an attempt.
func (w *work) judgeLook(ctx context.Context, p *corev1.Pod, nonce string, target platform.Platform) finding {
	o := pod.JudgeLook(p)
	o.Message = withPlatform(o, target.String())
	left := p.CreationTimestamp.Add(pod.Timeout(w.class)).Sub(w.now)
	switch {
	case o.State == pod.Failed:
		return finding{failure: &verdict{reason: o.Reason, message: o.Message}}
	case left <= 0:
		v := &verdict{reason: v1alpha1.ReasonDeadlineExceeded, message: fmt.Sprintf("not done within the %s that the class allows", pod.Timeout(w.class))}
		if o.Reason != "" {
			v.reason, v.message = o.Reason, o.Message+" ("+v.message+")"
		}
		return finding{failure: v}
	case o.Failing:
		grace := w.Backoff.ImageGrace - w.now.Sub(w.looks.failing(w.name, nonce, w.now))
		if grace > 0 {
			return finding{wait: sooner(grace, left)}
		}
		v := w.withHint(ctx, p, verdict{reason: o.Reason, message: o.Message})
		return finding{failure: &v}
	}
	return finding{wait: left}
}

// lookDirect has this process look the reference up, beside the workers.
func (w *work) lookDirect(ctx context.Context) finding {
	if !w.looks.begin(w.name, "", false) {
		return finding{}
	}
	nonce := w.lookNonce(w.bundle)
	if f, known := w.looks.result(w.name, nonce); known {
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	reference := w.bundle.Spec.Source.Image.Reference
	w.looks.run(w.name, nonce, cancel, func() finding { return w.resolve(ctx, reference) }, func() { w.queue.Add(w.name) })
	return finding{}
}

// resolve asks the registry. A panic over what it answers is a failure of this look alone.
func (w *work) resolve(ctx context.Context, reference string) (f finding) {
	defer func() {
		if p := recover(); p != nil {
			_ = panicked(ctx, p, "a look", w.name)
			f = finding{failure: failedOverImage()}
		}
	}()
	found, err := w.Direct.Resolve(ctx, reference)
	if err != nil {
		return finding{failure: directFailure(err)}
	}
	return finding{reference: found}
}

// lookIsOver tells whether a look that has a pod is not, or not any more, to run. The cache may be behind, so
// before a pod goes the server is asked.
func (t *term) lookIsOver(ctx context.Context, name cache.ObjectName, b *v1alpha1.Bundle, made pod.Attempt) (bool, error) {
	if b != nil && b.UID == made.BundleUID && t.looksFor(b, made.Nonce) {
		return false, nil
	}
	live, err := t.Bundles.RukpakV1alpha1().Bundles(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return live.UID != made.BundleUID || !t.looksFor(live, made.Nonce), nil
}
