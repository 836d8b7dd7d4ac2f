// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package conditions keeps the conditions of a Bundle in step with one another. It works on
// metav1.Condition, which the internal and every external version share, so that the API
// server and the reconciler use the same few functions.
package conditions

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// MessageStorageFull says what a full content store means. It names no numbers, so that it stays the same
// while they change.
const MessageStorageFull = "the content store of the class is full: what is there is served, and new content is taken once there is room"

// Own reports whether conditions of a type are the server's, or are set by the provisioner in its place.
func Own(kind string) bool {
	switch kind {
	case v1alpha1.ConditionUnpacked, v1alpha1.ConditionReady, v1alpha1.ConditionStalled, v1alpha1.ConditionRefreshed:
		return true
	}
	return OfContent(kind)
}

// OfContent reports whether conditions of a type tell what is stored. They are the server's, whoever provisions.
func OfContent(kind string) bool {
	return kind == v1alpha1.ConditionContentAvailable || kind == v1alpha1.ConditionStorageFull
}

// Begin sets the conditions of a bundle whose generation is new: whether it will be
// unpacked is unknown, and nothing keeps it from being tried. What is being served goes on being served.
func Begin(conditions *[]metav1.Condition, generation int64) {
	// It was about what the earlier spec named.
	meta.RemoveStatusCondition(conditions, v1alpha1.ConditionRefreshed)
	SetProgress(conditions, generation, metav1.ConditionUnknown, v1alpha1.ReasonPending, "no attempt has been made for this generation")
	SetStalled(conditions, generation, false, v1alpha1.ReasonProgressing, "")
	if meta.FindStatusCondition(*conditions, v1alpha1.ConditionContentAvailable) == nil {
		SetContentAvailable(conditions, generation, false, v1alpha1.ReasonNoContent, "there is no content yet")
	}
}

// SetProgress sets Unpacked, and Ready with it: Unknown while attempts are made, False
// when they have failed, True when the content of generation is there. It reports whether anything changed.
func SetProgress(conditions *[]metav1.Condition, generation int64, status metav1.ConditionStatus, reason, message string) bool {
	unpacked := set(conditions, v1alpha1.ConditionUnpacked, generation, status, reason, message)
	ready := set(conditions, v1alpha1.ConditionReady, generation, status, reason, message)
	return unpacked || ready
}

// SetContentAvailable says whether content is served. Without content nothing is ready.
// It reports whether anything changed.
func SetContentAvailable(conditions *[]metav1.Condition, generation int64, available bool, reason, message string) bool {
	changed := set(conditions, v1alpha1.ConditionContentAvailable, generation, boolStatus(available), reason, message)
	if !available && meta.IsStatusConditionTrue(*conditions, v1alpha1.ConditionReady) {
		changed = set(conditions, v1alpha1.ConditionReady, generation, metav1.ConditionFalse, reason, message) || changed
	}
	return changed
}

// SetStalled says whether nothing will be tried until somebody acts. It reports whether anything changed.
func SetStalled(conditions *[]metav1.Condition, generation int64, stalled bool, reason, message string) bool {
	return set(conditions, v1alpha1.ConditionStalled, generation, boolStatus(stalled), reason, message)
}

// SetStorageFull says whether new content waits for room in the content store. Where it never did there is
// nothing to say. It reports whether anything changed.
func SetStorageFull(conditions *[]metav1.Condition, generation int64, full bool) bool {
	if full {
		return set(conditions, v1alpha1.ConditionStorageFull, generation, metav1.ConditionTrue, v1alpha1.ReasonStorageFull, MessageStorageFull)
	}
	return meta.IsStatusConditionTrue(*conditions, v1alpha1.ConditionStorageFull) &&
		set(conditions, v1alpha1.ConditionStorageFull, generation, metav1.ConditionFalse, v1alpha1.ReasonRoom, "")
}

// SetRefreshed says that it is known what the reference of the source names, and that that is
// unpacked. It reports whether anything changed.
func SetRefreshed(conditions *[]metav1.Condition, generation int64) bool {
	return set(conditions, v1alpha1.ConditionRefreshed, generation, metav1.ConditionTrue, v1alpha1.ReasonRefreshed,
		"the content is what the reference named when it was looked up last")
}

// SetRefreshFailed says that looking up what the reference of the source names, or unpacking that, has
// failed. What was unpacked before is served all the same, so nothing else changes. It reports whether anything changed.
func SetRefreshFailed(conditions *[]metav1.Condition, generation int64, reason, message string) bool {
	return set(conditions, v1alpha1.ConditionRefreshed, generation, metav1.ConditionFalse, reason, message)
}

// Phase derives the summary of the conditions.
func Phase(conditions []metav1.Condition) v1alpha1.BundlePhase {
	unpacked := meta.FindStatusCondition(conditions, v1alpha1.ConditionUnpacked)
	switch {
	case unpacked == nil:
		return v1alpha1.BundlePending
	case unpacked.Status == metav1.ConditionFalse || meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionStalled):
		return v1alpha1.BundleFailing
	case unpacked.Status == metav1.ConditionTrue && meta.IsStatusConditionFalse(conditions, v1alpha1.ConditionContentAvailable):
		return v1alpha1.BundleFailing
	case unpacked.Status == metav1.ConditionTrue:
		return v1alpha1.BundleUnpacked
	}
	switch unpacked.Reason {
	case v1alpha1.ReasonPending, v1alpha1.ReasonQueued, v1alpha1.ReasonWaitingForUpload, v1alpha1.ReasonWaitingForProvisioner, v1alpha1.ReasonClassMissing, v1alpha1.ReasonSuspended, v1alpha1.ReasonStorageFull:
		return v1alpha1.BundlePending
	}
	return v1alpha1.BundleUnpacking
}

func set(conditions *[]metav1.Condition, kind string, generation int64, status metav1.ConditionStatus, reason, message string) bool {
	return meta.SetStatusCondition(conditions, metav1.Condition{
		Type: kind, Status: status, ObservedGeneration: generation, Reason: reason, Message: message,
	})
}

func boolStatus(b bool) metav1.ConditionStatus {
	if b {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}
