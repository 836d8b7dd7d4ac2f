// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"rukpak.io/apiserver/pkg/unpack/pod"
)

// endingTime is how long a pod that was told to end counts, if it does not. A kubelet does not end one before the runtime gives up
// pulling its image, which takes containerd five minutes if no byte comes. Of a node that is lost no pod ends.
const endingTime = 10 * time.Minute

// occupy keeps the place of a pod until the pod is gone or has ended, whatever becomes of the attempts that it was made for: its
// node keeps it until then.
func (t *term) occupy(before, p *corev1.Pod) {
	ending := p.DeletionTimestamp != nil
	switch {
	case pod.IsLook(p): // looks have places of their own
	case p.Status.Phase == corev1.PodSucceeded, p.Status.Phase == corev1.PodFailed, ending && p.Spec.NodeName == "":
		t.vacate(p)
	case !ending:
		t.places.Occupy(p.Namespace, p.Name)
	case before == nil || before.DeletionTimestamp == nil:
		t.places.Occupy(p.Namespace, p.Name)
		time.AfterFunc(endingTime, func() { t.vacate(p) })
	}
}

func (t *term) vacate(p *corev1.Pod) { t.places.Vacate(p.Namespace, p.Name, time.Now()) }
