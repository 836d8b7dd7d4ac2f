// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/bytesize"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/nameless"
	"rukpak.io/apiserver/pkg/tarball"
)

// push writes content.
func (s *session) push() *cobra.Command {
	var opts typed.UploadContentOptions
	cmd := &cobra.Command{
		Use:   "push NAME FOLDER | ARCHIVE | -",
		Short: "Write content: a folder, or a tar or tar.gz",
		Long: `Make a folder, or a tar or tar.gz, the content of a bundle whose source is an upload. "-" is an archive on the standard input.

It is sent in parts, and goes on by itself where it broke off; after Ctrl-C, where the same command is given again, which with --if-digest
or --if-none begins anew. On Windows folders are sent with the mode 0755 and files with 0644: an archive keeps others. Content that the bundle has and serves already is not sent again if it comes from a folder.`,
		Example: `  # A folder
  kubectl bundle push app ./folder

  # An archive, but only in place of the content that you know
  kubectl bundle push app app.tar.gz --if-digest sha256:530a62cc54d977760a4daf8e2b8b4f60fc2df5f89c08605656e509a6c690f45e

  # What another program makes
  tar -C folder -c . | kubectl bundle push app -`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: s.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if opts.IfNone && opts.IfDigest != "" {
				return usage("--if-digest and --if-none exclude each other")
			}
			if opts.IfDigest != "" && !wholeDigest.MatchString(opts.IfDigest) {
				return usage("--if-digest %q is no digest: sha256: and 64 hexadecimal digits, as \"%s history NAME\" shows them", opts.IfDigest, program)
			}
			bundles, name, err := s.named(args[0])
			if err != nil {
				return err
			}
			return s.upload(cmd.Context(), bundles, name, args[1], opts)
		},
	}
	cmd.Flags().StringVar(&opts.IfDigest, "if-digest", "", "Write only if the content has this digest until then.")
	cmd.Flags().BoolVar(&opts.IfNone, "if-none", false, "Write only if there is no content until then.")
	return cmd
}

// upload writes the content of a bundle from a folder, an archive or the standard input.
func (s *session) upload(ctx context.Context, bundles typed.BundleInterface, name, from string, opts typed.UploadContentOptions) (err error) {
	source, err := s.openSource(ctx, from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.close()) }()
	if had, err := s.has(ctx, bundles, name, source, opts); err != nil {
		return err
	} else if had != nil {
		s.say("bundle/%s: has this content already: %s", name, had.Digest)
		return nil
	}
	s.sends = true
	meter := s.meter(name, 0, source.size)
	opts.Progress, opts.Resume = meter.Set, true
	b, err := bundles.UploadContent(ctx, name, source.content, source.size, opts)
	meter.Stop()
	if err != nil {
		if ctx.Err() != nil {
			again := "goes on where this one was"
			if opts.IfDigest != "" || opts.IfNone {
				again = "begins anew" // The client resumes no upload with a precondition.
			}
			return fail(ExitInterrupted, errors.New("interrupted"), "the bundle has the content that it had; the same command %s", again)
		}
		return s.notPushed(ctx, name, from, s.notTaken(ctx, bundles, name, err))
	}
	if c := b.Status.Content; c != nil {
		s.say("bundle/%s: %s, %s, %s", name, c.Digest, bytesize.String(c.Size), plural(c.Files, "file"))
	}
	return nil
}

// notTaken tells a bundle that takes no content from credentials that may not write any: the server answers 403 to both.
func (s *session) notTaken(ctx context.Context, bundles typed.BundleInterface, name string, err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	if b, getErr := bundles.Get(ctx, name, metav1.GetOptions{}); getErr == nil {
		return cmp.Or(s.fromImage(b), err)
	}
	return err
}

// fromImage is the error of writing to a bundle whose content comes from its image, and nil for others.
func (s *session) fromImage(b *v1alpha1.Bundle) error {
	if b.Spec.Source.Type != v1alpha1.SourceTypeImage || stateOf(b).foreign() != "" {
		return nil
	}
	return fail(ExitNoContent, fmt.Errorf("the content of bundle %q in namespace %q comes from its image, and nobody writes it", b.Name, b.Namespace),
		"make another for it: %s create NAME --upload%s; or name another image in spec.source.image.reference", program, s.where(""))
}

// builtIn reports whether the server itself unpacks the bundles of a provisioner.
func builtIn(provisioner string) bool {
	return provisioner == v1alpha1.ProvisionerRaw || provisioner == v1alpha1.ProvisionerPlain
}

// has returns the content of a bundle if it is what is to be sent, and is served. That is known of folders alone.
func (s *session) has(ctx context.Context, bundles typed.BundleInterface, name string, source *source, opts typed.UploadContentOptions) (*v1alpha1.ContentStatus, error) {
	if source.uncompressed == "" || opts.IfDigest != "" || opts.IfNone {
		return nil, nil
	}
	b, err := bundles.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		// Who may write need not be allowed to look.
		if s.explain(ctx, err).code == ExitNotAllowed {
			return nil, nil
		}
		return nil, err
	}
	// Of a new bundle it may not be known yet whose it is: then the server decides.
	if builtIn(b.Status.Provisioner) {
		if err := s.fromImage(b); err != nil {
			return nil, err
		}
	}
	c := b.Status.Content
	if c == nil || c.UncompressedDigest != source.uncompressed || c.Generation != b.Generation {
		return nil, nil
	}
	// The status goes on naming content whose stored bytes are gone, and sending it again is what brings it back.
	for _, kind := range []string{v1alpha1.ConditionContentAvailable, v1alpha1.ConditionUnpacked} {
		if !meta.IsStatusConditionTrue(b.Status.Conditions, kind) {
			return nil, nil
		}
	}
	return c, nil
}

// source is an archive that is to be sent.
type source struct {
	content io.ReaderAt
	size    int64
	// uncompressed is the digest of the canonical tar, where it is known.
	uncompressed string
	// file is what is to be closed, if anything is.
	file *os.File
}

func (o *source) close() error {
	if o.file == nil {
		return nil
	}
	return o.file.Close()
}

// openSource opens what is to be sent: an archive as it is, a folder as the archive of it, the standard input as a copy.
func (s *session) openSource(ctx context.Context, from string) (*source, error) {
	if from == "-" {
		return checked(s.openInput(ctx))
	}
	archive, err := openArchive(from)
	if err != nil || archive != nil {
		return archive, err
	}
	return spool(func(w io.Writer) (string, error) {
		summary, err := tarball.Pack(ctx, w, from, "", tarball.Limits{})
		return summary.UncompressedDigest, err
	})
}

// openInput opens the standard input. Of what is a file already no copy is made.
func (s *session) openInput(ctx context.Context) (*source, error) {
	if isTerminal(s.In) {
		return nil, usage("there is no archive on the standard input: name a folder or a file, or send one, as in: tar -C folder -c . | %s push NAME -", program)
	}
	if file, ok := s.In.(*os.File); ok {
		info, err := file.Stat()
		if err == nil && info.Mode().IsRegular() {
			at, err := file.Seek(0, io.SeekCurrent)
			size := max(info.Size()-at, 0)
			return &source{content: io.NewSectionReader(file, at, size), size: size}, err
		}
	}
	return spool(func(w io.Writer) (string, error) {
		input, arriving := io.Pipe()
		// It may wait for more as long as the program runs. Nothing fails in closing a pipe.
		go func() {
			_, err := io.Copy(arriving, s.In)
			_ = arriving.CloseWithError(err)
		}()
		stop := context.AfterFunc(ctx, func() { _ = arriving.CloseWithError(context.Cause(ctx)) })
		defer stop()
		_, err := io.Copy(w, input)
		return "", errors.Join(err, input.Close())
	})
}

// openArchive opens what is to be sent as it is. It returns nil for a folder, and refuses what is neither a folder nor an archive.
func openArchive(from string) (*source, error) {
	info, err := os.Stat(from)
	if err != nil || info.IsDir() {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, usage("%s is neither a folder nor a file", from)
	}
	file, err := os.Open(from)
	if err != nil {
		return nil, err
	}
	return checked(&source{content: file, size: info.Size(), file: file}, nil)
}

// checked refuses what is neither a tar nor a tar.gz before it is sent.
func checked(o *source, err error) (*source, error) {
	if err != nil {
		return nil, err
	}
	head := make([]byte, min(o.size, 16))
	if _, err = o.content.ReadAt(head, 0); err == nil || len(head) == 0 {
		err = tarball.CheckFormat(head)
	}
	if err != nil {
		return nil, errors.Join(err, o.close())
	}
	return o, nil
}

// spool makes a temporary file of what write writes. An upload reads from where it broke off, and what it needs for that is a file.
func spool(write func(io.Writer) (string, error)) (_ *source, err error) {
	file, err := nameless.Create("", "kubectl-bundle-")
	if err != nil {
		return nil, err
	}
	o := &source{content: file, file: file}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.close())
		}
	}()
	if o.uncompressed, err = write(file); err != nil {
		return nil, err
	}
	if o.size, err = file.Seek(0, io.SeekCurrent); err != nil {
		return nil, fmt.Errorf("measure %s: %w", file.Name(), err)
	}
	return o, nil
}
