// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

const (
	yes     = metav1.ConditionTrue
	no      = metav1.ConditionFalse
	unknown = metav1.ConditionUnknown
)

// expect checks the status, the generation and the reason of a condition.
func expect(t *testing.T, conditions []metav1.Condition, kind string, status metav1.ConditionStatus, generation int64, reason string) {
	t.Helper()
	c := meta.FindStatusCondition(conditions, kind)
	if c == nil {
		t.Errorf("there is no condition %s", kind)
	} else if c.Status != status || c.ObservedGeneration != generation || c.Reason != reason {
		t.Errorf("%s is %s of generation %d because of %s; want %s, %d, %s", kind, c.Status, c.ObservedGeneration, c.Reason, status, generation, reason)
	}
}

func TestBeginOfABundle(t *testing.T) {
	var c []metav1.Condition
	Begin(&c, 1)
	expect(t, c, v1alpha1.ConditionReady, unknown, 1, v1alpha1.ReasonPending)
	expect(t, c, v1alpha1.ConditionUnpacked, unknown, 1, v1alpha1.ReasonPending)
	expect(t, c, v1alpha1.ConditionStalled, no, 1, v1alpha1.ReasonProgressing)
	expect(t, c, v1alpha1.ConditionContentAvailable, no, 1, v1alpha1.ReasonNoContent)
	if len(c) != 4 || Phase(c) != v1alpha1.BundlePending {
		t.Errorf("%d conditions, phase %s", len(c), Phase(c))
	}
}

// A new generation leaves what is served as it is, and nothing of the old yes or no.
func TestBeginOfAGeneration(t *testing.T) {
	for name, before := range map[string]func(*[]metav1.Condition){
		"after success": func(c *[]metav1.Condition) { SetProgress(c, 1, yes, v1alpha1.ReasonUnpacked, "") },
		"after failure": func(c *[]metav1.Condition) {
			SetProgress(c, 1, no, "PullFailed", "")
			SetStalled(c, 1, true, "PullFailed", "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			var c []metav1.Condition
			Begin(&c, 1)
			SetContentAvailable(&c, 1, true, v1alpha1.ReasonAvailable, "")
			before(&c)
			Begin(&c, 2)
			expect(t, c, v1alpha1.ConditionReady, unknown, 2, v1alpha1.ReasonPending)
			expect(t, c, v1alpha1.ConditionUnpacked, unknown, 2, v1alpha1.ReasonPending)
			expect(t, c, v1alpha1.ConditionStalled, no, 2, v1alpha1.ReasonProgressing)
			expect(t, c, v1alpha1.ConditionContentAvailable, yes, 1, v1alpha1.ReasonAvailable)
		})
	}
}

func TestSetProgress(t *testing.T) {
	for _, status := range []metav1.ConditionStatus{yes, no, unknown} {
		t.Run(string(status), func(t *testing.T) {
			var c []metav1.Condition
			if !SetProgress(&c, 3, status, "Because", "of this") {
				t.Error("nothing changed at first")
			}
			expect(t, c, v1alpha1.ConditionReady, status, 3, "Because")
			expect(t, c, v1alpha1.ConditionUnpacked, status, 3, "Because")
			if SetProgress(&c, 3, status, "Because", "of this") {
				t.Error("the same again is a change")
			}
			if !SetProgress(&c, 3, status, "Because", "of that") {
				t.Error("another message is no change")
			}
			if !SetProgress(&c, 4, status, "Because", "of that") {
				t.Error("another generation is no change")
			}
			// One of the two suffices.
			SetContentAvailable(&c, 4, false, v1alpha1.ReasonContentLost, "")
			if status == yes && !SetProgress(&c, 4, status, "Because", "of that") {
				t.Error("Ready was mended without a change")
			}
		})
	}
}

func TestSetContentAvailable(t *testing.T) {
	for name, test := range map[string]struct {
		ready     metav1.ConditionStatus // before; none if empty
		available bool
		want      metav1.ConditionStatus
		reason    string
	}{
		"content for one that is ready":     {yes, true, yes, "Before"},
		"content for one in progress":       {unknown, true, unknown, "Before"},
		"content for one that fails":        {no, true, no, "Before"},
		"a loss for one that is ready":      {yes, false, no, v1alpha1.ReasonContentLost},
		"a loss for one in progress":        {unknown, false, unknown, "Before"},
		"a loss for one that fails":         {no, false, no, "Before"},
		"a loss where nothing is known yet": {"", false, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var c []metav1.Condition
			if test.ready != "" {
				SetProgress(&c, 1, test.ready, "Before", "")
			}
			reason := map[bool]string{true: v1alpha1.ReasonAvailable, false: v1alpha1.ReasonContentLost}[test.available]
			if !SetContentAvailable(&c, 1, test.available, reason, "m") {
				t.Error("nothing changed")
			}
			expect(t, c, v1alpha1.ConditionContentAvailable, map[bool]metav1.ConditionStatus{true: yes, false: no}[test.available], 1, reason)
			if test.want == "" {
				if meta.FindStatusCondition(c, v1alpha1.ConditionReady) != nil {
					t.Error("Ready has come from nowhere")
				}
			} else {
				expect(t, c, v1alpha1.ConditionReady, test.want, 1, test.reason)
				expect(t, c, v1alpha1.ConditionUnpacked, test.ready, 1, "Before")
			}
			if SetContentAvailable(&c, 1, test.available, reason, "m") {
				t.Error("the same again is a change")
			}
		})
	}
}

func TestSetStalled(t *testing.T) {
	var c []metav1.Condition
	for _, stalled := range []bool{true, false} {
		if !SetStalled(&c, 1, stalled, "Because", "") || SetStalled(&c, 1, stalled, "Because", "") {
			t.Errorf("stalled %v: what changed is not told", stalled)
		}
		if meta.IsStatusConditionTrue(c, v1alpha1.ConditionStalled) != stalled {
			t.Errorf("stalled is not %v", stalled)
		}
	}
}

// The time of a transition is that of a change of the status, not of a word.
func TestTransitionTime(t *testing.T) {
	var c []metav1.Condition
	SetProgress(&c, 1, unknown, v1alpha1.ReasonPending, "")
	long := metav1.NewTime(time.Unix(1e9, 0))
	for i := range c {
		c[i].LastTransitionTime = long
	}
	SetProgress(&c, 1, unknown, v1alpha1.ReasonUnpacking, "")
	if got := meta.FindStatusCondition(c, v1alpha1.ConditionReady).LastTransitionTime; got != long {
		t.Errorf("another reason moved the time to %v", got)
	}
	SetProgress(&c, 1, yes, v1alpha1.ReasonUnpacked, "")
	if got := meta.FindStatusCondition(c, v1alpha1.ConditionReady).LastTransitionTime; got == long {
		t.Error("another status did not move the time")
	}
}

func TestPhase(t *testing.T) {
	for name, test := range map[string]struct {
		unpacked  metav1.ConditionStatus // no condition if empty
		reason    string
		available bool
		stalled   bool
		want      v1alpha1.BundlePhase
	}{
		"no conditions":                      {want: v1alpha1.BundlePending},
		"pending":                            {unpacked: unknown, reason: v1alpha1.ReasonPending, want: v1alpha1.BundlePending},
		"pending beside old content":         {unpacked: unknown, reason: v1alpha1.ReasonPending, available: true, want: v1alpha1.BundlePending},
		"waiting for an upload":              {unpacked: unknown, reason: v1alpha1.ReasonWaitingForUpload, want: v1alpha1.BundlePending},
		"waiting for a provisioner":          {unpacked: unknown, reason: v1alpha1.ReasonWaitingForProvisioner, want: v1alpha1.BundlePending},
		"the class is missing":               {unpacked: unknown, reason: v1alpha1.ReasonClassMissing, want: v1alpha1.BundlePending},
		"suspended":                          {unpacked: unknown, reason: v1alpha1.ReasonSuspended, available: true, want: v1alpha1.BundlePending},
		"unpacking":                          {unpacked: unknown, reason: v1alpha1.ReasonUnpacking, want: v1alpha1.BundleUnpacking},
		"unpacking beside old content":       {unpacked: unknown, reason: v1alpha1.ReasonUnpacking, available: true, want: v1alpha1.BundleUnpacking},
		"an attempt waits for something":     {unpacked: unknown, reason: "Unschedulable", want: v1alpha1.BundleUnpacking},
		"failed":                             {unpacked: no, reason: "PullFailed", want: v1alpha1.BundleFailing},
		"failed beside old content":          {unpacked: no, reason: "PullFailed", available: true, want: v1alpha1.BundleFailing},
		"cannot succeed":                     {unpacked: no, reason: "Refused", stalled: true, want: v1alpha1.BundleFailing},
		"stalled before it failed":           {unpacked: unknown, reason: v1alpha1.ReasonPending, stalled: true, want: v1alpha1.BundleFailing},
		"unpacked":                           {unpacked: yes, reason: v1alpha1.ReasonUnpacked, available: true, want: v1alpha1.BundleUnpacked},
		"unpacked, and lost":                 {unpacked: yes, reason: v1alpha1.ReasonUnpacked, want: v1alpha1.BundleFailing},
		"unpacked, and stalled all the same": {unpacked: yes, reason: v1alpha1.ReasonUnpacked, available: true, stalled: true, want: v1alpha1.BundleFailing},
	} {
		t.Run(name, func(t *testing.T) {
			var c []metav1.Condition
			if test.unpacked != "" {
				SetProgress(&c, 1, test.unpacked, test.reason, "")
				SetContentAvailable(&c, 1, test.available, "Because", "")
				SetStalled(&c, 1, test.stalled, "Because", "")
			}
			if got := Phase(c); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
	// A provisioner of somebody else's may set Unpacked alone.
	if got := Phase([]metav1.Condition{{Type: v1alpha1.ConditionUnpacked, Status: yes}}); got != v1alpha1.BundleUnpacked {
		t.Errorf("Unpacked alone: %s", got)
	}
}
