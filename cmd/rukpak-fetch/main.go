// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Command rukpak-fetch puts the content of a bundle into a volume of the pod that it runs in, as an init container or a
// sidecar. See docs/fetch.md.
//
//	rukpak-fetch [flags] [NAMESPACE/]NAME DIR   puts the content into DIR, and ends, or follows it with --follow
//	rukpak-fetch check DIR                      ends with 0 if there is content in DIR: a probe
//
// The exit code is 0 when it did what it was told, or was told to end while it followed; 1 when it failed; 2 when the command
// line is wrong.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

	"rukpak.io/apiserver/pkg/fetch"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	code := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// command runs one command and returns the exit code.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 2 && args[0] == "check" {
		return check(args[1], stdout, stderr)
	}
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "rukpak-fetch:", err)
		return 2
	}
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(stderr, "rukpak-fetch:", err)
		return 1
	}
	return 0
}

// check says which content is in a folder.
func check(dir string, stdout, stderr io.Writer) int {
	digest, err := fetch.Current(dir)
	if err == nil && digest == "" {
		err = fmt.Errorf("there is no content in %s yet", dir)
	}
	if err != nil {
		fmt.Fprintln(stderr, "rukpak-fetch:", err)
		return 1
	}
	fmt.Fprintln(stdout, digest)
	return 0
}
