// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"
)

// StartTimeout bounds the start of everything, the build of the server included.
const StartTimeout = 10 * time.Minute

// Run is the TestMain of a package whose tests work against something that is started once: begin starts it, with its
// files in a folder, and end ends it, whatever begin came to. It returns the code to exit with. The folder is kept, for
// the logs in it, unless all went well.
func Run(m *testing.M, begin func(ctx context.Context, dir string) error, end func() error) int {
	dir, err := MakeDir()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := 1
	if err := inTime(begin, dir); err != nil {
		fmt.Fprintln(os.Stderr, "cannot start what the tests work against:", err)
	} else {
		code = m.Run()
	}
	if err := end(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot end what the tests worked against:", err)
		code = 1
	}
	if code != 0 {
		fmt.Fprintln(os.Stderr, "the logs are kept in", dir)
		return code
	}
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func inTime(begin func(context.Context, string) error, dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), StartTimeout)
	defer cancel()
	return begin(ctx, dir)
}
