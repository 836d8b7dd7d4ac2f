// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/bytesize"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/tarball"
)

// verify checks content.
func (s *session) verify() *cobra.Command {
	return &cobra.Command{
		Use:   "verify NAME[@REVISION] [FOLDER | ARCHIVE]",
		Short: "Check that content is whole, or that a folder or archive of yours is that content",
		Long: `Read all of the content and check it: its digest, each entry of the archive, and that digests, size and number of files are those
of the bundle's status.

With a folder or an archive, check instead that this is the content. Nothing is fetched then. A folder is packed as the server would,
on Windows, where it has no modes, with 0755 for folders and 0644 for files; an archive may be the one that the server serves, or any tar or tar.gz with the same files. Exit code 7 means that it is not.`,
		Example: `  kubectl bundle verify app

  # Is this what the cluster has?
  kubectl bundle verify app ./folder`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: s.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			bundles, t, digest, err := s.opened(ctx, args[0])
			if err != nil {
				return err
			}
			b, err := bundles.Get(ctx, t.name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			c, err := s.content(t, b, digest)
			if err != nil {
				return err
			}
			if len(args) > 1 {
				return s.verifyLocal(ctx, t, c, args[1])
			}
			return s.verifyContent(ctx, bundles, t, c)
		},
	}
}

// content is the status of a content of a bundle; that of the current one if digest is empty.
func (s *session) content(t target, b *v1alpha1.Bundle, digest string) (v1alpha1.ContentStatus, error) {
	for _, c := range revisions(b) {
		if digest == "" || c.Digest == digest {
			if b.Status.Content == nil {
				break
			}
			return c, nil
		}
	}
	if digest == "" {
		return v1alpha1.ContentStatus{}, fail(ExitNoContent, fmt.Errorf("bundle %q in namespace %q has no content: %s", b.Name, b.Namespace, stateOf(b).stage()),
			"%s describe %s%s says what it waits for, and what to do", program, b.Name, s.where(b.Namespace))
	}
	return v1alpha1.ContentStatus{}, s.none(b, "has no content "+digest)
}

// verifyContent reads content from the server.
func (s *session) verifyContent(ctx context.Context, bundles typed.BundleInterface, t target, c v1alpha1.ContentStatus) error {
	content, err := bundles.GetContent(ctx, t.name, typed.GetContentOptions{Digest: c.Digest})
	if err != nil {
		return err
	}
	defer closing(content)
	meter := s.meter(t.name, 0, content.Size)
	summary, err := tarball.Verify(ctx, io.TeeReader(content, counter{meter}), tarball.Limits{}, nil)
	meter.Stop()
	if err != nil {
		return err
	}
	for _, check := range []struct {
		what      string
		got, want any
	}{
		{"digest", summary.Digest, c.Digest},
		{"size", summary.Size, c.Size},
		{"digest of the tar", summary.UncompressedDigest, c.UncompressedDigest},
		{"size of the tar", summary.UncompressedSize, c.UncompressedSize},
		{"number of files", summary.Files, c.Files},
	} {
		if check.got != check.want {
			return fail(ExitWrongContent, fmt.Errorf("%s: its %s is %v, and the status says %v", t.name, check.what, check.got, check.want),
				"\"kubectl bundle doctor%s\" says whether the server is well; its command fsck checks all that it stores", s.where(""))
		}
	}
	return s.print("bundle.rukpak.io/%s: whole: %s, %s, %s", t.name, c.Digest, bytesize.String(c.Size), plural(c.Files, "file"))
}

// verifyLocal compares what is on this machine.
func (s *session) verifyLocal(ctx context.Context, t target, c v1alpha1.ContentStatus, path string) error {
	summary, folder, err := summarize(ctx, path)
	if err != nil {
		return err
	}
	if summary.UncompressedDigest != c.UncompressedDigest {
		hint := fmt.Sprintf("%s diff %s %s%s shows what differs", program, quoted(t.String()), localWord(path), s.where(""))
		if folder && s.modeless {
			hint += "; a folder has no modes here, and was packed with 0755 for folders and 0644 for files: content with other modes is told apart by them alone, and diff does not compare them"
		}
		return fail(ExitWrongContent, fmt.Errorf("%s is not the content of %s: packed, the digest of its tar (status.content.uncompressedDigest) is %s, and not %s", path, t.name, summary.UncompressedDigest, c.UncompressedDigest),
			"%s", hint)
	}
	return s.print("bundle.rukpak.io/%s: %s has the same files: content %s, as a tar %s", t.name, path, c.Digest, c.UncompressedDigest)
}

// summarize says what the canonical archive of a folder or of an archive is, and whether it is a folder.
func summarize(ctx context.Context, path string) (summary tarball.Summary, folder bool, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return tarball.Summary{}, false, err
	}
	if info.IsDir() {
		summary, err = tarball.Pack(ctx, io.Discard, path, "", tarball.Limits{})
		return summary, true, err
	}
	file, err := os.Open(path)
	if err != nil {
		return tarball.Summary{}, false, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	summary, err = tarball.Canonicalize(ctx, io.Discard, file, tarball.Options{})
	return summary, false, err
}
