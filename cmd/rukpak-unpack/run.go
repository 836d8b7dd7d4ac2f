// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"time"

	"rukpak.io/apiserver/pkg/unpack/contract"
)

// How long to wait between two tries: the first time, and at most.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
)

// longestPatience bounds how long a server is waited for that is not reached. It is long enough for
// one that restarts; what a pod says is heard only when it ends.
const longestPatience = 2 * time.Minute

// patience is how long a server is waited for that is not reached. It leaves time for the report.
func (c config) patience() time.Duration { return min(longestPatience, c.timeout/2) }

// failure is an error with a reason that the server knows.
type failure struct {
	reason string
	err    error
	retry  bool
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// runCommand packs and sends what the environment names and returns the exit code.
func runCommand(ctx context.Context, getenv func(string) string, report func(contract.Report)) int {
	c, err := readConfig(getenv)
	if err != nil {
		report(contract.Report{Reason: contract.ReasonInvalidConfiguration, Message: err.Error()})
		return 1
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if f := run(ctx, c, report); f != nil {
		report(f.report())
		return 1
	}
	return 0
}

// run tries until the content is taken, the failure is one that another try
// cannot mend, or ctx ends. Each failure is reported on the way, since a pod that
// is killed at its deadline has no time for it.
func run(ctx context.Context, c config, report func(contract.Report)) *failure {
	client := newClient(c)
	defer client.CloseIdleConnections()
	return try(ctx, client, c, report)
}

func try(ctx context.Context, client *http.Client, c config, report func(contract.Report)) *failure {
	lastContact := time.Now()
	var before *failure
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		f := send(ctx, client, c)
		if f == nil || !f.retry {
			return f
		}
		if before != nil && ctx.Err() != nil {
			f = before // a try that the end of the time broke off says less
		}
		before = f
		switch waited := time.Since(lastContact); {
		case f.reason != contract.ReasonServerUnreachable:
			lastContact = time.Now()
		case waited >= c.patience():
			return &failure{reason: f.reason, err: fmt.Errorf("%w (tried for %s)", f.err, waited.Round(time.Second))}
		}
		report(f.report())
		jittered := pause/2 + rand.N(pause)
		if f.reason == contract.ReasonServerUnreachable {
			// The last try is when patience ends, not when the time of the run has.
			jittered = min(jittered, max(c.patience()-time.Since(lastContact), time.Millisecond))
		}
		select {
		case <-ctx.Done():
			return &failure{reason: f.reason, err: fmt.Errorf("%w (gave up: %w)", f.err, context.Cause(ctx))}
		case <-time.After(jittered):
		}
	}
}

func (f *failure) report() contract.Report {
	return contract.Report{Reason: f.reason, Message: f.err.Error()}
}

// notEmpty checks that there is anything at all where the image is. What is no image of files, such as an
// artifact with a configuration of its own kind, may be mounted without a word, as nothing.
func notEmpty(root string) error {
	dir, err := os.Open(root)
	if err != nil {
		return nil // whoever reads the files says it better
	}
	defer dir.Close()
	if _, err := dir.Readdirnames(1); !errors.Is(err, io.EOF) {
		return nil
	}
	return errors.New("there is not one file in the image: it is an artifact that the container runtime does not unpack, its layers are empty, or the runtime has no image volumes")
}

// packFailure tells what an error of tarball.Pack means.
func packFailure(err error) *failure {
	f := &failure{reason: contract.PackReason(err), err: err}
	switch {
	case f.reason == "":
		f.reason = contract.ReasonContentUnreadable
	case errors.Is(err, fs.ErrPermission):
		f.err = fmt.Errorf("%w; user %d reads the files: unpack.podTemplate.runAsUser of the class chooses another", err, os.Getuid())
	case errors.Is(err, fs.ErrNotExist):
		f.err = fmt.Errorf("the image has no such path: %w", err)
	}
	return f
}

// terminationLog returns a function that replaces the content of the file, and
// tells standard error too, for whoever reads the pod's log.
func terminationLog(path string) func(contract.Report) {
	return func(r contract.Report) {
		fmt.Fprintf(os.Stderr, "rukpak-unpack: %s: %s\n", r.Reason, r.Message)
		data, err := r.Encode()
		if err == nil {
			err = os.WriteFile(path, data, 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "rukpak-unpack:", err)
		}
	}
}
