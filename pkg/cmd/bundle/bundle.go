// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bundle is the kubectl plugin for bundles. Each command is a file. All of it goes through the public API, with the
// kubeconfig and the flags of kubectl; what is meant for people goes to the standard error, what is meant for programs to the
// standard output.
package bundle

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// program is how the plugin is called.
const program = "kubectl bundle"

// Main runs the command that args name, and returns its exit code. ctx ends when the user wants no more.
func Main(ctx context.Context, args []string, streams genericiooptions.IOStreams) int {
	s := newSession(streams)
	root := s.command()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if s.stdout.err != nil {
		err = s.stdout.err
	}
	if err == nil {
		return ExitOK
	}
	if errors.Is(err, errNo) {
		return ExitNo
	}
	p := s.explain(ctx, err)
	s.complain(p)
	if p.hint != "" {
		// As for the error.
		_, _ = fmt.Fprintf(streams.ErrOut, "hint: %s\n", clean(p.hint))
	}
	return p.code
}

// complain writes an error for people.
func (s *session) complain(err error) {
	// Nobody is left to tell of an error.
	_, _ = fmt.Fprintf(s.ErrOut, "error: %s\n", clean(err.Error()))
}

func (s *session) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-bundle",
		Short: "Make, watch, read and write bundles",
		Long: `Make, watch, read and write bundles: content that lives outside the cluster and is served by the Kubernetes API.

NAME is that of a bundle, or NAME@REVISION for a content that it had earlier: a digest, the first digits of one, or -1 for the
one before the current, -2 for the one before that.`,
		Example: `  # A bundle from an image, and one from a folder
  kubectl bundle create app --image registry.example/app:1.4 --wait
  kubectl bundle create mine --from ./folder --class raw

  # What is in it
  kubectl bundle tree app
  kubectl bundle pull app ./app/`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: program},
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.ErrOut)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return misused(cmd, err) })
	s.given = pflag.NewFlagSet(program, pflag.ContinueOnError)
	s.flags.AddFlags(s.given)
	root.PersistentFlags().AddFlagSet(s.given)
	root.PersistentFlags().BoolVarP(&s.quiet, "quiet", "q", false, "Say nothing but errors and what was asked for.")
	root.AddGroup(&cobra.Group{ID: groupWrite, Title: "Make and write:"}, &cobra.Group{ID: groupRead, Title: "Read content:"}, &cobra.Group{ID: groupState, Title: "See and influence how it goes:"})
	for _, c := range []struct {
		group    string
		commands []*cobra.Command
	}{
		{groupWrite, []*cobra.Command{s.create(), s.push()}},
		{groupRead, []*cobra.Command{s.pull(), s.list(), s.ls(), s.tree(), s.cat(), s.diff(), s.history(), s.verify()}},
		{groupState, []*cobra.Command{s.describe(), s.wait(), s.retry(), s.refresh(), s.logs(), s.doctor()}},
	} {
		for _, command := range c.commands {
			command.GroupID = c.group
			root.AddCommand(command)
		}
	}
	root.AddCommand(s.version())
	s.complete(root)
	checkArgs(root)
	return root
}

const (
	groupWrite = "write"
	groupRead  = "read"
	groupState = "state"
)

// checkArgs makes wrong arguments an error of usage, for all commands.
func checkArgs(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return misused(cmd, err)
			}
			return nil
		}
	}
	for _, below := range cmd.Commands() {
		checkArgs(below)
	}
}

func misused(cmd *cobra.Command, err error) error {
	return fail(ExitUsage, err, "usage: %s; --help says more", cmd.UseLine())
}
