// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Times are when an unpack pod got how far, as its status says: whole seconds, by the clocks of kube-apiserver, the
// scheduler and the node. What has not happened yet, or that nobody has said, is zero.
type Times struct {
	Created, Scheduled, Started, Finished time.Time
}

// UnscheduledSince is since when the scheduler has found no node for a pod, by its own clock; zero if it has not said so.
func UnscheduledSince(pod *corev1.Pod) time.Time {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// TimesOf reads a pod. The program has started when the first of the containers has that reads files, and has finished
// with the last of them.
func TimesOf(pod *corev1.Pod) Times {
	t := Times{Created: pod.CreationTimestamp.Time}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			t.Scheduled = c.LastTransitionTime.Time
		}
	}
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		if s.Name == ContainerResolve {
			continue
		}
		var started time.Time
		switch {
		case s.State.Running != nil:
			started = s.State.Running.StartedAt.Time
		case s.State.Terminated != nil:
			started = s.State.Terminated.StartedAt.Time
			if end := s.State.Terminated.FinishedAt.Time; end.After(t.Finished) {
				t.Finished = end
			}
		}
		if !started.IsZero() && (t.Started.IsZero() || started.Before(t.Started)) {
			t.Started = started
		}
	}
	return t
}

// Scheduling is how long the pod waited for a node.
func (t Times) Scheduling() (time.Duration, bool) { return between(t.Created, t.Scheduled) }

// Pull is how long the node took until the program ran.
func (t Times) Pull() (time.Duration, bool) { return between(t.Scheduled, t.Started) }

func between(from, to time.Time) (time.Duration, bool) {
	return max(to.Sub(from), 0), !from.IsZero() && !to.IsZero()
}
