// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	corev1 "k8s.io/api/core/v1"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// Reasons that the condition DisruptionTarget and the status of a pod are given by parts of
// Kubernetes, as far as its API has no names for them.
const (
	byTaintManager   = "DeletionByTaintManager"
	byPodGC          = "DeletionByPodGC"
	statusEvicted    = "Evicted"      // by a kubelet that is short of something
	statusPreempting = "Preempting"   // by a kubelet, for a pod that is critical
	statusTerminated = "Terminated"   // by a kubelet whose node shuts down
	statusShutdown   = "NodeShutdown" // the same, of a pod that came too late
	statusNodeLost   = "NodeLost"     // by the node controllers of earlier versions
)

// Disrupted tells who took a pod away, of those who do so for reasons that are none of
// the pod's. It returns false when nobody did.
func Disrupted(pod *corev1.Pod) (Outcome, bool) {
	status := pod.Status.Reason
	if pod.Status.Phase != corev1.PodFailed && status != statusNodeLost {
		status = ""
	}
	disrupted := false
	var by, message string
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			disrupted, by, message = true, c.Reason, c.Message
		}
	}
	if message == "" {
		message = pod.Status.Message
	}
	switch {
	case by == corev1.PodReasonPreemptionByScheduler, status == statusPreempting:
		return failed(v1alpha1.ReasonPreempted, "the pod had to make room for one of higher priority", message), true
	case by == byTaintManager:
		return failed(v1alpha1.ReasonNodeLost, "the node was lost, or tainted so that the pod had to go", message), true
	case by == byPodGC, status == statusNodeLost:
		return failed(v1alpha1.ReasonNodeLost, "the node of the pod was lost", message), true
	case disrupted, status == statusEvicted, status == statusTerminated, status == statusShutdown:
		return failed(v1alpha1.ReasonEvicted, "the pod was evicted", message), true
	}
	return Outcome{}, false
}
