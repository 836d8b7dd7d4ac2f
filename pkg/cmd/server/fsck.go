// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apiserver"
	"rukpak.io/apiserver/pkg/content/filesystem"
	"rukpak.io/apiserver/pkg/content/instance"
	"rukpak.io/apiserver/pkg/content/verify"
	"rukpak.io/apiserver/pkg/registry/bundle"
)

// Exit codes of fsck.
const (
	exitProblems  = 1
	exitUnchecked = 2
)

const fsckLong = `fsck reads all stored content and compares it with the records of it and with what the bundles name. It works on
the stores and the etcd that a server with the same flags uses. A folder, and the embedded etcd, belong to one process: stop the
server first. Stores and an etcd that several servers share can be checked while they run.

With --repair it removes damaged content, so that the server gets that of images from their sources again, and content
and records that no bundle has had for longer than --content-gc-grace. It never removes whole content that a bundle names, and
nothing where that would be most of what there is.

It ends with 0 if all is well, 1 if it found problems (also those that it repaired), 2 if it could not check.`

// fsck checks the content stores of a server.
type fsck struct {
	*Options
	repair bool
	output string
	rate   int64 // MiB a second
	out    io.Writer
	errOut io.Writer
}

func newFsckCommand(code *int) *cobra.Command {
	f := &fsck{Options: NewOptions(), output: "text"}
	own := func(fs *pflag.FlagSet) {
		fs.BoolVar(&f.repair, "repair", f.repair, "Remove damaged content, and content and records that no bundle has.")
		fs.StringVarP(&f.output, "output", "o", f.output, "How to print the report: text or json.")
		fs.Int64Var(&f.rate, "rate", f.rate, "How fast to read, in MiB a second. 0 is as fast as possible.")
	}
	cmd := newTool("fsck", "Check the stored content", fsckLong, f.Options, own, func(cmd *cobra.Command) error {
		f.out, f.errOut = cmd.OutOrStdout(), cmd.ErrOrStderr()
		clean, err := f.run(cmd.Context())
		switch {
		case err != nil:
			return err
		case !clean:
			*code = exitProblems
		default:
			*code = 0
		}
		return nil
	})
	// Whatever ends it before its report, flags included.
	*code = 0
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		*code = exitUnchecked
		return run(cmd, args)
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := cobra.NoArgs(cmd, args)
		if err != nil {
			*code = exitUnchecked
		}
		return err
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		*code = exitUnchecked
		return err
	})
	return cmd
}

// run checks, and reports whether all is well.
func (f *fsck) run(ctx context.Context) (clean bool, err error) {
	if f.output != "text" && f.output != "json" {
		return false, fmt.Errorf("--output: %q is neither text nor json", f.output)
	}
	err = f.withProcess(ctx, (*process).openStored, func(ctx context.Context, p *process) error {
		bundles, err := p.offlineBundles()
		if err != nil {
			return err
		}
		defer bundles.Bundle.Destroy()
		if f.repair {
			// What looks like garbage may be the content of an etcd that was lost.
			if err := p.inspectInstance(ctx); err != nil {
				return fmt.Errorf("nothing is repaired: %w", err)
			}
		}
		c := f.checker(p, bundles)
		report, err := c.Check(ctx)
		if err != nil {
			return err
		}
		clean = len(report.Problems) == 0
		// An etcd of before, or of another server, names other content than the stores should keep.
		var disagreement *instance.Disagreement
		switch fits := p.inspectInstance(ctx); {
		case f.repair && fits != nil:
			err = fmt.Errorf("nothing is repaired: %w", fits)
		case f.repair:
			err = c.Repair(ctx, report)
		case errors.As(fits, &disagreement):
			err = fmt.Errorf("this was compared with what does not belong to it: %w", disagreement)
		}
		// What was repaired until then is worth to be known.
		return errors.Join(err, f.print(report))
	})
	if errors.Is(err, filesystem.ErrInUse) {
		err = fmt.Errorf("a server is running: stop it first: %w", err)
	}
	return clean, err
}

func (f *fsck) checker(p *process, bundles *bundle.Storage) *verify.Checker {
	stores := map[string]verify.Store{}
	for name, store := range p.stores {
		stores[name] = store
	}
	var said time.Time
	return &verify.Checker{
		Stores: stores, Records: p.records, Grace: p.Collect.Grace, Pace: verify.NewPace(f.rate << 20), Now: time.Now,
		Named: func(ctx context.Context) ([]verify.Named, error) { return p.namedContent(ctx, bundles) },
		Progress: func(store string, done, all int) {
			const interval = 5 * time.Second
			if now := time.Now(); now.Sub(said) >= interval {
				said = now
				fmt.Fprintf(f.errOut, "store %s: %d of %d blobs\n", store, done, all)
			}
		},
	}
}

func (f *fsck) print(report *verify.Report) error {
	if f.output == "json" {
		e := json.NewEncoder(f.out)
		e.SetIndent("", "  ")
		return e.Encode(report)
	}
	for _, s := range report.Stores {
		if _, err := fmt.Fprintf(f.out, "store %s: %d blobs, %d bytes, %d records, %d blobs to be collected\n", s.Name, s.Blobs, s.Bytes, s.Records, s.Garbage); err != nil {
			return err
		}
	}
	repaired := 0
	for _, p := range report.Problems {
		line := string(p.Kind)
		for _, part := range []string{p.Store, p.Digest, p.Bundle} {
			if part != "" {
				line += " " + part
			}
		}
		line += ": " + p.Message
		if p.Repair != "" {
			line += " (" + p.Repair + ")"
		}
		if p.Repair == verify.Removed {
			repaired++
		}
		if _, err := fmt.Fprintln(f.out, line); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(f.out, "%d contents of bundles, %d problems, %d repaired\n", report.Contents, len(report.Problems), repaired)
	return err
}

// inspectInstance fails unless etcd and the content stores belong together.
func (p *process) inspectInstance(ctx context.Context) error {
	guard, err := instance.New(p.instanceConfig())
	if err != nil {
		return err
	}
	return guard.Inspect(ctx)
}

// offlineBundles opens the stored bundles as the server does, with its encryption, but without serving them.
func (p *process) offlineBundles() (*bundle.Storage, error) {
	config := genericapiserver.NewRecommendedConfig(apiserver.Codecs)
	options := *p.Recommended.Etcd
	options.EnableWatchCache = false
	if err := options.ApplyTo(&config.Config); err != nil {
		return nil, fmt.Errorf("open the stored bundles: %w", err)
	}
	bundles, err := bundle.NewStorage(apiserver.Scheme, config.RESTOptionsGetter, nil, func(*rukpak.Bundle) {})
	if err != nil {
		return nil, fmt.Errorf("open the stored bundles: %w", err)
	}
	return bundles, nil
}

// namedContent lists what the bundles name, and the parts of uploads that are under way.
func (p *process) namedContent(ctx context.Context, bundles *bundle.Storage) ([]verify.Named, error) {
	list, err := bundles.List(ctx)
	if err != nil {
		return nil, err
	}
	var named []verify.Named
	for i := range list {
		b := &list[i]
		for c := range b.Status.Contents() {
			named = append(named, verify.Named{BundleUID: string(b.UID), Namespace: b.Namespace, Name: b.Name, Digest: c.Digest, Size: c.Size})
		}
	}
	parts, err := p.partsOfUploads(ctx)
	if err != nil {
		return nil, err
	}
	for _, ref := range parts {
		named = append(named, verify.Named{BundleUID: ref.BundleUID, Digest: ref.Digest, Part: true})
	}
	return named, nil
}
