// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"

	"rukpak.io/apiserver/pkg/content"
)

// Main runs the command, or one of its own or more commands below it, with the arguments of the process, and returns the code to exit with.
func Main(ctx context.Context, more ...*cobra.Command) int {
	code := 0
	cmd := NewCommand(ctx)
	cmd.AddCommand(more...)
	cmd.AddCommand(newFsckCommand(&code), newEtcdRecoverCommand())
	return max(cli.Run(cmd), code)
}

// newTool makes a command that works on what a server with the same flags works on.
func newTool(use, short, long string, o *Options, own func(*pflag.FlagSet), run func(*cobra.Command) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: cobra.NoArgs, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Complete(cmd.Flags().Changed); err != nil {
				return err
			}
			stores, err := parseStores(o.Stores, o.DataDir)
			if err != nil {
				return err
			}
			o.storeURLs = stores
			if err := errors.Join(o.Space.validate()...); err != nil {
				return err
			}
			return run(cmd)
		},
	}
	var sets cliflag.NamedFlagSets
	own(sets.FlagSet(use))
	o.AddFlags(&sets)
	for _, name := range []string{use, "rukpak", "content", "etcd"} {
		cmd.Flags().AddFlagSet(sets.FlagSet(name))
	}
	cliflag.SetUsageAndHelpFunc(cmd, cliflag.NamedFlagSets{Order: []string{use, "rukpak", "content", "etcd"}, FlagSets: sets.FlagSets}, 0)
	return cmd
}

// openTimeout bounds how long a command waits for etcd and the stores.
const openTimeout = time.Minute

// withProcess calls do with what open opens of a server's parts, and closes them.
func (o *Options) withProcess(ctx context.Context, open func(*process, context.Context, context.CancelCauseFunc) error, do func(context.Context, *process) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A data dir that is misspelt would be made, and found to be in the best of orders.
	if len(o.Recommended.Etcd.StorageConfig.Transport.ServerList) == 0 {
		if _, err := os.Stat(filepath.Join(o.DataDir, "etcd", "data", "member", "snap", "db")); err != nil {
			return fmt.Errorf("--data-dir: there is no embedded etcd: %w", err)
		}
	}
	p := &process{Options: o, stores: map[string]content.Store{}}
	defer p.close()
	late := time.AfterFunc(openTimeout, func() { cancel(fmt.Errorf("not reached within %v", openTimeout)) })
	err := open(p, ctx, cancel)
	if err == nil {
		err = p.awaitEtcd(ctx)
	}
	late.Stop()
	if err != nil {
		return err
	}
	if err := do(ctx, p); err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			return fmt.Errorf("%w: %w", err, cause)
		}
		return err
	}
	return nil
}
