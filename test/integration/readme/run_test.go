// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package readme holds the README's first session against what make run prints.
package readme

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rukpak.io/apiserver/test/readme"
)

// TestMakeRun does what make run does, once, from a new data dir, and finds the README's session in what it prints.
func TestMakeRun(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	steps, err := readme.Steps(filepath.Join(root, "README.md"), "standalone")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	data := filepath.Join(t.TempDir(), "standalone")
	cmd := exec.CommandContext(ctx, filepath.Join(root, "hack", "run.sh"), "--once", "--data-dir", data, "--port", "6454")
	cmd.Dir = root
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	printed := strings.Split(strings.ReplaceAll(string(output), data, "_output/standalone"), "\n")
	for _, step := range steps {
		for _, line := range append([]string{"$ " + step.Command}, step.Output...) {
			at := find(printed, line)
			if at < 0 {
				t.Fatalf("the README shows %q, which make run does not print (any more):\n%s", line, output)
			}
			printed = printed[at+1:]
		}
	}
}

func find(lines []string, want string) int {
	for i, line := range lines {
		if readme.Steady(line) == readme.Steady(want) {
			return i
		}
	}
	return -1
}
