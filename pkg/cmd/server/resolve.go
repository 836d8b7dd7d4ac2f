// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"rukpak.io/apiserver/pkg/unpack/pod"
)

// resolveTimeout bounds how long a commit waits for the node's word on an image.
const resolveTimeout = 10 * time.Second

// waitResolved returns the image, by digest, that an unpack pod takes its files from. A pod can be
// done before its node has written which image its container runs, which it does a second or two after
// the start. It is empty when the node does not say so in time, or the pod is gone.
func waitResolved(ctx context.Context, kube kubernetes.Interface, namespace, name, reference string) (string, error) {
	limited, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	pods := kube.CoreV1().Pods(namespace)
	found, err := pods.Get(limited, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	resolved := pod.ResolvedReference(found, reference)
	if resolved != "" {
		return resolved, nil
	}
	source := &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
		return pods.Watch(ctx, o)
	}}
	_, err = watchtools.Until(limited, found.ResourceVersion, source, func(e watch.Event) (bool, error) {
		switch found := e.Object.(type) {
		case *corev1.Pod:
			resolved = pod.ResolvedReference(found, reference)
			return resolved != "" || e.Type == watch.Deleted, nil
		case *metav1.Status:
			return false, apierrors.FromObject(found)
		}
		return false, nil
	})
	if err != nil && (limited.Err() == nil || ctx.Err() != nil) {
		return "", fmt.Errorf("pod %s/%s: %w", namespace, name, err)
	}
	return resolved, nil
}
