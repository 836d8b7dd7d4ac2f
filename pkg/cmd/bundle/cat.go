// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// cat prints files.
func (s *session) cat() *cobra.Command {
	return &cobra.Command{
		Use:   "cat NAME[@REVISION] PATH...",
		Short: "Print single files of the content, without getting the rest",
		Long: `Print single files of the content, one after the other, without getting the rest. What is not there is said, and the others are
printed; it ends with 4 then.`,
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
			var missing error
			for _, path := range args[1:] {
				err := s.copyFile(cmd.Context(), bundles, t.name, inside([]string{path}), digest)
				if err != nil && missing != nil {
					s.complain(missing)
				}
				if err != nil && !isMissing(err) {
					return err
				}
				missing = cmp.Or(err, missing)
			}
			return missing
		},
	}
}

// isMissing reports whether a path names no file, which those that follow may do.
func isMissing(err error) bool {
	p, ok := errors.AsType[*problem](err)
	return ok && p.code == ExitNotFound || apierrors.HasStatusCause(err, v1alpha1.CauseFileNotFound)
}

func (s *session) copyFile(ctx context.Context, bundles typed.BundleInterface, name, path, digest string) error {
	if path == "" {
		return usage("the root is a directory: %s ls %s%s lists it", program, quoted(s.inside), s.where(""))
	}
	content, err := bundles.GetFile(ctx, name, path, typed.GetFileOptions{Digest: digest})
	if err != nil {
		if errors.Is(err, typed.ErrIsDirectory) {
			return fail(ExitNotFound, fmt.Errorf("%s is a directory", path), "%s ls %s %s%s lists it", program, quoted(s.inside), quoted(path), s.where(""))
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
