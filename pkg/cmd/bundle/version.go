// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import "github.com/spf13/cobra"

// release is the version of the program. The build sets it.
var release = "v0.0.0"

// version prints the version.
func (s *session) version() *cobra.Command {
	return &cobra.Command{
		Use:               "version",
		Short:             "Print the version of the plugin",
		Example:           `  kubectl bundle version`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(*cobra.Command, []string) error { return s.print("%s", release) },
	}
}
