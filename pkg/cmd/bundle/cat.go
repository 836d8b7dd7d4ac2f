// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// cat prints files.
func (s *session) cat() *cobra.Command {
	return &cobra.Command{
		Use:   "cat NAME[@REVISION] PATH...",
		Short: "Print single files of the content, without getting the rest",
		Example: `  kubectl bundle cat app manifests/deployment.yaml

  # As it was before
  kubectl bundle cat app@-1 manifests/deployment.yaml`,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: s.completeFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			bundles, t, digest, err := s.opened(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			for _, path := range args[1:] {
				if err := s.copyFile(cmd.Context(), bundles, t.name, inside([]string{path}), digest); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func (s *session) copyFile(ctx context.Context, bundles typed.BundleInterface, name, path, digest string) error {
	if path == "" {
		return usage("the root is a directory: %s ls %s lists it", program, name)
	}
	content, err := bundles.GetFile(ctx, name, path, typed.GetFileOptions{Digest: digest})
	if err != nil {
		if errors.Is(err, typed.ErrIsDirectory) {
			return fail(ExitNotFound, fmt.Errorf("%s is a directory", path), "%s ls %s %s%s lists it", program, name, path, s.nameFlag())
		}
		return err
	}
	defer closing(content)
	if _, err := io.Copy(s.Out, content); err != nil {
		if errors.Is(err, typed.ErrDigestMismatch) {
			return fail(ExitWrongContent, err, "what was printed of %s is damaged: do not use it", path)
		}
		return err
	}
	return nil
}
