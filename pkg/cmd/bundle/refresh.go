// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"github.com/spf13/cobra"
)

// annotationRefresh on a bundle asks to look its image up anew, each time its value changes.
const annotationRefresh = "rukpak.io/refresh"

// refresh asks to look a tag up.
func (s *session) refresh() *cobra.Command {
	return s.asking(&request{annotation: annotationRefresh, done: "its image will be looked up anew"}, &cobra.Command{
		Use:   "refresh NAME",
		Short: "Look up now what the tag of an image names, and unpack that if it has changed",
		Example: `  kubectl bundle refresh app

  # And wait for it
  kubectl bundle refresh app --wait`,
	})
}
