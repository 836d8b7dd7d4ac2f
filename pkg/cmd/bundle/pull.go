// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"rukpak.io/apiserver/pkg/bytesize"
	"rukpak.io/apiserver/pkg/cmd/bundle/download"
	"rukpak.io/apiserver/pkg/cmd/bundle/progress"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

// pull gets content.
func (s *session) pull() *cobra.Command {
	replace := false
	cmd := &cobra.Command{
		Use:   "pull NAME[@REVISION] [FILE | FOLDER/ | -]",
		Short: "Get content, as an archive or as files",
		Long: `Get content: into a file (NAME.tar.gz unless you name another), into a folder if what you name is one or ends with a slash, or to
the standard output.

What breaks off goes on by itself. After Ctrl-C, or when this machine is at fault, the same command goes on where it was: what is there
is kept beside the destination in a file that ends with .part. Nothing is at the destination, or changed there, before all has
come and has its digest.

A folder that is there and empty is filled, and stays the folder that it is, a mount point as well. One that is not there appears in one
step. What is there is moved or deleted only with --replace, and then only when the new files are in its place: that is one step where the
system can exchange folders (Linux, on most file systems), two elsewhere, and where something is mounted one for each name in it. What
a crash leaves in between the next pull puts right, or names. A symbolic link to a folder stays, and what it leads to is filled or replaced.`,
		Example: `  # Into app.tar.gz
  kubectl bundle pull app

  # The files, into a folder that is not there yet or empty
  kubectl bundle pull app ./app/

  # The files, in place of what is in the folder
  kubectl bundle pull app ./app/ --replace

  # The content before the current one, to another program
  kubectl bundle pull app@-1 - | tar tz`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: s.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			bundles, t, digest, err := s.opened(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			to := t.name + ".tar.gz"
			if len(args) > 1 {
				to = args[1]
			}
			p := &puller{session: s, Bundle: download.Bundle{Client: bundles, Name: t.name, Digest: digest}}
			switch {
			case to == "":
				return usage("the destination has no name")
			case to == "-":
				return p.stdout(cmd.Context())
			case isFolder(to):
				return p.folder(cmd.Context(), filepath.Clean(to), replace)
			}
			if err := replaceable(to); err != nil {
				return err
			}
			return p.file(cmd.Context(), to)
		},
	}
	cmd.Flags().BoolVar(&replace, "replace", false, "Replace what is in the folder, only when all has come.")
	return cmd
}

// replaceable refuses what is there and is no ordinary file: the file is put in its place, and a device or a link would be gone.
func replaceable(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, syscall.ENAMETOOLONG):
		return usage("%s is too long a name for a file: name another", path)
	case err == nil && !info.Mode().IsRegular():
		return usage("%s is no ordinary file: - writes to the standard output", path)
	}
	return nil
}

// isFolder reports whether files are to go to a path.
func isFolder(path string) bool {
	if strings.HasSuffix(path, "/") || os.IsPathSeparator(path[len(path)-1]) || path == "." || path == ".." {
		return true
	}
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

type puller struct {
	*session
	download.Bundle
	to    string
	meter *progress.Meter
}

// Begin, Add and Again are download.Progress.
func (p *puller) Begin(digest string, have, size int64) {
	if have > 0 && have < size {
		p.say("%s: going on after %s of %s", p.to, bytesize.String(have), bytesize.String(size))
	}
	p.meter = p.session.meter(p.to, have, size)
}

// Add is told of what came.
func (p *puller) Add(n int64) { p.meter.Add(n) }

// Again is told of a new beginning.
func (p *puller) Again(reason error) {
	p.stop()
	p.say("%s: beginning anew: %s", p.to, clean(reason.Error()))
}

func (p *puller) stop() {
	if p.meter != nil {
		p.meter.Stop()
	}
}

// fetched stops the meter, and says what Ctrl-C means for a download.
func (p *puller) fetched(ctx context.Context, err error) error {
	p.stop()
	if ctx.Err() != nil {
		return fail(ExitInterrupted, errors.New("interrupted"), "what has come is kept: the same command goes on where it was")
	}
	return err
}

func (p *puller) file(ctx context.Context, path string) error {
	p.to = filepath.Base(path)
	result, err := download.File(ctx, p.Bundle, path, p)
	if err := p.fetched(ctx, err); err != nil {
		return err
	}
	p.say("%s: %s, %s", path, result.Digest, bytesize.String(result.Size))
	return nil
}

// stdout writes the archive to the standard output.
func (p *puller) stdout(ctx context.Context) (err error) {
	if isTerminal(p.Out) {
		return usage("an archive is nothing for a terminal: name a file or a folder, or send it to a program, as in: %s pull %s - | tar tz", program, quoted(p.inside)+p.where(""))
	}
	content, err := p.Client.GetContent(ctx, p.Name, typed.GetContentOptions{Digest: p.Digest})
	if err != nil {
		return err
	}
	defer closing(content)
	p.to = p.Name
	p.Begin(content.Digest, 0, content.Size)
	defer p.stop()
	_, err = io.Copy(p.Out, io.TeeReader(content, counter{p.meter}))
	if errors.Is(err, typed.ErrDigestMismatch) {
		return fail(ExitWrongContent, err, "what was written to the standard output is damaged: do not use it")
	}
	return err
}

// counter tells a meter of what is written to it.
type counter struct{ *progress.Meter }

func (c counter) Write(p []byte) (int, error) {
	c.Add(int64(len(p)))
	return len(p), nil
}
