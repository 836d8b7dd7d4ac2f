// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTimesOf(t *testing.T) {
	at := func(seconds int) metav1.Time { return metav1.Unix(1_000_000_000+int64(seconds), 0) }
	scheduled := []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: at(2)}}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(5)}}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: at(4), FinishedAt: at(9)}}
	early := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: at(3), FinishedAt: at(3)}}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}
	const unknown = -1
	for name, test := range map[string]struct {
		status           corev1.PodStatus
		scheduling, pull int
		finished         bool
	}{
		"nothing yet": {corev1.PodStatus{}, unknown, unknown, false},
		"no node": {corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, LastTransitionTime: at(2)}}}, unknown, unknown, false},
		"pulling": {corev1.PodStatus{Conditions: scheduled, ContainerStatuses: []corev1.ContainerStatus{{Name: ContainerUnpack, State: waiting}}}, 2, unknown, false},
		"running": {corev1.PodStatus{Conditions: scheduled, ContainerStatuses: []corev1.ContainerStatus{{Name: ContainerUnpack, State: running}}}, 2, 3, false},
		"ended beside the container that tells the digest": {corev1.PodStatus{Conditions: scheduled, ContainerStatuses: []corev1.ContainerStatus{
			{Name: ContainerResolve, State: early}, {Name: ContainerUnpack, State: ended}}}, 2, 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			times := TimesOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: at(0)}, Status: test.status})
			for what, stage := range map[string]struct {
				f    func() (time.Duration, bool)
				want int
			}{"scheduling": {times.Scheduling, test.scheduling}, "pull": {times.Pull, test.pull}} {
				got, known := stage.f()
				if known != (stage.want != unknown) || known && got != time.Duration(stage.want)*time.Second {
					t.Errorf("%s took %v (known: %t), want %d s", what, got, known, stage.want)
				}
			}
			if got := !times.Finished.IsZero(); got != test.finished {
				t.Errorf("finished: %t", got)
			}
		})
	}
}
