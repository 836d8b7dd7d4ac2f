// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"github.com/spf13/cobra"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// refresh asks to look a tag up.
func (s *session) refresh() *cobra.Command {
	r := &request{
		annotation: v1alpha1.AnnotationRefresh, outlook: refreshOutlook,
		handled: func(b *v1alpha1.Bundle) string { return b.Status.LastHandledRefresh },
		busy:    refreshing,
		failed:  func(b *v1alpha1.Bundle) bool { return stateOf(b).unrefreshed() },
		vain: func(b *v1alpha1.Bundle) bool {
			s := stateOf(b)
			return s.failing() && !s.attempting() && !s.had()
		},
	}
	return s.asking(r, &cobra.Command{
		Use:   "refresh NAME",
		Short: "Look up now what the tag of an image names, and unpack that if it has changed",
		Long: `Look up now what the tag of an image names, and unpack that if it has changed. What was unpacked before is served meanwhile.
Where nothing would come of it nothing is asked for, and it says why: an image that is named by digest is always the same, and before
an attempt begins it has yet to be looked up. While one runs it is asked for: it may have looked before the tag was moved.

With --wait it ends with 0 when the content is what the tag names, and with 1 when the look, or unpacking what it found, has failed.`,
		Example: `  kubectl bundle refresh app

  # And wait for it
  kubectl bundle refresh app --wait`,
	})
}

// refreshing reports whether an attempt is under way that takes what a look has found.
func refreshing(b *v1alpha1.Bundle) bool {
	u := b.Status.Unpack
	return u != nil && u.Refresh && u.EndTime == nil
}
