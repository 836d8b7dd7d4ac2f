// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"net/http"
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
		if c.Digest == summary.Digest && g.settled(s) {
			return false, nil
		}
		if err := g.checkRestored(b, c, summary); err != nil {
			return false, err
		}
		if g.attempt && s.Unpack.EndTime != nil && c.Digest != summary.Digest {
			return false, conflict(b, CauseAttemptEnded, "the attempt has brought other content already")
		}
	}
	at := metav1.NewTime(now)
	changed := s.Content == nil || s.Content.Digest != summary.Digest
	if s.Content != nil && changed && !isLost(s) {
		s.History = append([]rukpak.ContentStatus{*s.Content}, s.History...)
	}
	updated := at
	if !changed && !isLost(s) {
		updated = s.Content.UpdateTime // the same files in another image
	}
	s.Content = &rukpak.ContentStatus{
		Digest: summary.Digest, Size: summary.Size, MediaType: mediaType, Format: tarball.Format,
		UncompressedDigest: summary.UncompressedDigest, UncompressedSize: summary.UncompressedSize, Files: summary.Files,
		Generation: g.generation, UpdateTime: updated,
	}
	s.History = trim(s.History, summary.Digest, class)
	s.ResolvedSource = resolved
	s.Provisioner = class.Provisioner
	conditions.SetContentAvailable(&s.Conditions, b.Generation, true, v1alpha1.ReasonAvailable, "content is served")
	conditions.SetStorageFull(&s.Conditions, b.Generation, false)
	if !g.builtIn {
		return changed, nil
	}
	s.ObservedGeneration = b.Generation
	conditions.SetProgress(&s.Conditions, b.Generation, metav1.ConditionTrue, v1alpha1.ReasonUnpacked, "content of this generation is served")
	conditions.SetStalled(&s.Conditions, b.Generation, false, v1alpha1.ReasonUnpacked, "")
	if g.attempt {
		u := s.Unpack
		u.EndTime, u.NextAttemptTime, u.Failures, u.Reason, u.Message = &at, nil, 0, "", ""
		if resolved.Image != nil {
			u.ResolvedReference = resolved.Image.Reference
		}
		g.refreshed(b)
	}
	return changed, nil
}

// refreshed ends the refresh that brought the content, if it was one.
func (g *grant) refreshed(b *rukpak.Bundle) {
	s := &b.Status
	if !s.Unpack.Refresh {
		return
	}
	if s.Refresh != nil {
		s.Refresh = &rukpak.RefreshStatus{LastTime: s.Refresh.LastTime}
	}
	conditions.SetRefreshed(&s.Conditions, b.Generation)
}

// isLost reports whether the stored bytes of the content that a status names are gone.
func isLost(s *rukpak.BundleStatus) bool {
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionContentAvailable)
	return c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonContentLost
}

// settled reports whether the status says already all that the commit of the content it names would say. An
// attempt for content that is there, as after a retry, has yet to be ended.
func (g *grant) settled(s *rukpak.BundleStatus) bool {
	return meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionContentAvailable) &&
		(!g.builtIn || meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionUnpacked)) &&
		(!g.attempt || s.Unpack.EndTime != nil)
}

// checkRestored refuses to put other content into the place of content that was lost: what a bundle once
// resolved is pinned, and what was pinned can be told by the digest of its files.
func (g *grant) checkRestored(b *rukpak.Bundle, lost *rukpak.ContentStatus, summary tarball.Summary) error {
	if !g.attempt || !isLost(&b.Status) ||
		lost.UncompressedDigest == "" || lost.UncompressedDigest == summary.UncompressedDigest || b.Status.Unpack.Refresh {
		return nil
	}
	message := "the content that was lost had the files " + lost.UncompressedDigest + ", and the image has " + summary.UncompressedDigest +
		": edit the source, or set the annotation " + v1alpha1.AnnotationRefresh + ", to take what it has now"
	return status(b, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, message, metav1.StatusCause{Type: CauseContentRefused, Message: message})
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
