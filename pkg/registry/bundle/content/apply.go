// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/tarball"
)

// apply writes committed content into a bundle's status. It reports whether the content is another than
// before; the same content of the same generation changes nothing.
func (g *grant) apply(b *rukpak.Bundle, class *rukpak.ProvisionerClass, summary tarball.Summary, resolved *rukpak.ResolvedSource, now time.Time) (bool, error) {
	s := &b.Status
	if c := s.Content; c != nil && c.Generation == g.generation {
		if c.Digest == summary.Digest && meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionContentAvailable) {
			return false, nil
		}
		if g.attempt && s.Unpack.EndTime != nil && c.Digest != summary.Digest {
			return false, conflict(b, CauseAttemptEnded, "the attempt has brought other content already")
		}
	}
	at := metav1.NewTime(now)
	changed := s.Content == nil || s.Content.Digest != summary.Digest
	if s.Content != nil && changed {
		s.History = append([]rukpak.ContentStatus{*s.Content}, s.History...)
	}
	s.Content = &rukpak.ContentStatus{
		Digest: summary.Digest, Size: summary.Size, MediaType: mediaType, Format: tarball.Format,
		UncompressedDigest: summary.UncompressedDigest, UncompressedSize: summary.UncompressedSize, Files: summary.Files,
		Generation: g.generation, UpdateTime: at,
	}
	s.History = trim(s.History, summary.Digest, class)
	s.ResolvedSource = resolved
	s.Provisioner = class.Provisioner
	conditions.SetContentAvailable(&s.Conditions, b.Generation, true, conditions.ReasonAvailable, "content is served")
	if !g.builtIn {
		return changed, nil
	}
	s.ObservedGeneration = b.Generation
	conditions.SetProgress(&s.Conditions, b.Generation, metav1.ConditionTrue, conditions.ReasonUnpacked, "content of this generation is served")
	conditions.SetStalled(&s.Conditions, b.Generation, false, conditions.ReasonUnpacked, "")
	if g.attempt {
		u := s.Unpack
		u.EndTime, u.NextAttemptTime, u.Failures, u.Reason, u.Message = &at, nil, 0, "", ""
		if resolved.Image != nil {
			u.ResolvedReference = resolved.Image.Reference
		}
	}
	return changed, nil
}

// trim keeps the newest earlier contents that the class allows, each once, without the current one.
func trim(history []rukpak.ContentStatus, current string, class *rukpak.ProvisionerClass) []rukpak.ContentStatus {
	limit := 0
	if class.RevisionHistoryLimit != nil {
		limit = int(*class.RevisionHistoryLimit)
	}
	seen := map[string]bool{current: true}
	var kept []rukpak.ContentStatus
	for _, c := range history {
		if len(kept) < limit && !seen[c.Digest] {
			kept = append(kept, c)
		}
		seen[c.Digest] = true
	}
	return kept
}
