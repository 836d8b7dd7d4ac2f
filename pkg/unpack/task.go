// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// task is what an attempt is to take.
type task struct {
	// refresh is set for what the reference names now, whatever it named before.
	refresh bool
	// fresh is set when the reference is looked up for this attempt, so that it does what somebody asked for who
	// asked for a refresh; asked when somebody has.
	fresh, asked bool
	// reference is the image by digest, if it is known beforehand.
	reference string
}

// task is what the next attempt takes. What was once found for a spec is pinned: content that is lost, or to
// be looked at by another provisioner, comes from that image, unless what the reference names now is asked for.
func (w *work) task() task {
	if !w.hasContent() {
		return task{fresh: true}
	}
	last := w.bundle.Status.Unpack
	if w.unpacked() {
		// A refresh is running, and the spec has changed in something that does not matter, or a retry is asked for.
		return task{refresh: true, reference: last.ResolvedReference}
	}
	wait, wanted := w.untilLook()
	// One that failed beside content that was served is over: what was lost since then was not what it was about.
	served := meta.IsStatusConditionTrue(w.bundle.Status.Conditions, v1alpha1.ConditionUnpacked)
	goesOn := last != nil && last.Refresh && last.Generation == w.bundle.Generation && (open(last) || last.Failures > 0 && !served)
	if wanted && wait == 0 || goesOn {
		return task{refresh: true, fresh: true, asked: w.refreshAsked()}
	}
	return task{reference: w.pinned()}
}

// noteRefresh notes in a status that an attempt finds out what the reference names, if it does.
func (w *work) noteRefresh(s *v1alpha1.BundleStatus, t task) {
	if t.fresh {
		w.handleRefresh(s)
	}
	if !t.refresh {
		return
	}
	r := &v1alpha1.RefreshStatus{LastTime: &metav1.Time{Time: w.now}}
	if s.Refresh != nil {
		r.Failures, r.Refused = s.Refresh.Failures, s.Refresh.Refused
	}
	s.Refresh = r
}

// unrestored says of content that was lost that it has not come back, and why. It returns the failure with what
// that means.
func (w *work) unrestored(s *v1alpha1.BundleStatus, v verdict) verdict {
	if !w.lost() || !w.hasContent() {
		return v
	}
	conditions.SetContentAvailable(&s.Conditions, w.bundle.Generation, false, v1alpha1.ReasonContentLost,
		fmt.Sprintf("the stored bytes of %s are gone, and have not come back: %s", s.Content.Digest, v.message))
	if from := s.Unpack.ResolvedReference; from != "" && !s.Unpack.Refresh {
		v.message += "; what was lost comes back from " + from + " alone"
		if !v1alpha1.Digested(w.bundle.Spec.Source.Image.Reference) {
			v.message += ", the annotation " + v1alpha1.AnnotationRefresh + " takes what the reference names now"
		}
	}
	return v
}

// pinned is the image by digest that the content of this generation was taken from. It is empty where there
// is no such content, or it is not known.
func (w *work) pinned() string {
	s := &w.bundle.Status
	if !w.hasContent() || s.ResolvedSource == nil || s.ResolvedSource.Image == nil {
		return ""
	}
	return s.ResolvedSource.Image.Reference
}

// digestOf returns the digest of a reference, or "".
func digestOf(reference string) string {
	_, digest, _ := strings.Cut(reference, "@")
	return digest
}
