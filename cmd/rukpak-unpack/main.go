// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Command rukpak-unpack runs inside unpack pods. It is one static file, so that it
// runs in any linux image.
//
//	rukpak-unpack run            packs the files that the environment names and sends them to the server
//	rukpak-unpack run-all        does so for each of several bundles
//	rukpak-unpack install PATH   copies itself to PATH
//	rukpak-unpack exit           ends at once, with success
//
// A failure goes to the pod's termination log and to standard error.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"rukpak.io/apiserver/pkg/unpack/contract"
)

const usage = "usage: rukpak-unpack run | run-all | install PATH | exit"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	code := command(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// command runs one command and returns the exit code.
func command(ctx context.Context, args []string) int {
	switch {
	case len(args) == 1 && args[0] == contract.CommandExit:
		return 0
	case len(args) == 1 && args[0] == contract.CommandRun:
		return runCommand(ctx, os.Getenv, terminationLog(contract.TerminationLog))
	case len(args) == 1 && args[0] == contract.CommandRunAll:
		return runAllCommand(ctx, os.Getenv, terminationLog(contract.TerminationLog))
	case len(args) == 2 && args[0] == contract.CommandInstall:
		if err := install("/proc/self/exe", args[1]); err != nil {
			fmt.Fprintln(os.Stderr, "rukpak-unpack:", err)
			return 1
		}
		return 0
	}
	fmt.Fprintln(os.Stderr, usage)
	return 2
}
