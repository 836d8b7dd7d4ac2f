// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package readme runs the shell sessions of the README, so that what it shows is what happens.
package readme

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
)

// Step is a command of a session, with the output that the README shows.
type Step struct {
	Command string
	Output  []string
}

// Steps returns the commands of all sessions of a name, in order: those in blocks of type console after a
// comment <!-- session: NAME -->. A line that begins with "> " belongs to the command before it.
func Steps(path, name string) ([]Step, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block := regexp.MustCompile("(?s)<!-- session: " + regexp.QuoteMeta(name) + " -->\n```console\n(.*?)```")
	var steps []Step
	for _, match := range block.FindAllStringSubmatch(string(data), -1) {
		for line := range strings.Lines(match[1]) {
			line = strings.TrimSuffix(line, "\n")
			switch command, ok := strings.CutPrefix(line, "$ "); {
			case ok:
				steps = append(steps, Step{Command: command})
			case len(steps) == 0:
				return nil, fmt.Errorf("a session %q of %s begins with output: %q", name, path, line)
			default:
				last := &steps[len(steps)-1]
				if more, ok := strings.CutPrefix(line, "> "); ok && len(last.Output) == 0 {
					last.Command += "\n" + more
				} else {
					last.Output = append(last.Output, line)
				}
			}
		}
	}
	if len(steps) == 0 {
		return nil, fmt.Errorf("%s has no session %q", path, name)
	}
	return steps, nil
}

// Run runs a step in a folder, and returns an error unless it ends well and prints what the README shows. What
// changes from run to run (digests, ages, widths of columns, when and where something was logged) is not compared.
func (s Step) Run(ctx context.Context, dir string, env []string) error {
	cmd := exec.CommandContext(ctx, "bash", "-eo", "pipefail", "-c", s.Command)
	cmd.Dir, cmd.Env = dir, env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("$ %s: %w\n%s%s", s.Command, err, stdout.String(), stderr.String())
	}
	got := strings.Split(strings.TrimRight(stdout.String(), "\n"), "\n")
	if stdout.Len() == 0 {
		got = nil
	}
	if len(got) != len(s.Output) {
		return fmt.Errorf("$ %s printed %d lines, the README shows %d:\n%s%s", s.Command, len(got), len(s.Output), stdout.String(), stderr.String())
	}
	for i := range got {
		if Steady(got[i]) != Steady(s.Output[i]) {
			return fmt.Errorf("$ %s printed %q where the README shows %q", s.Command, got[i], s.Output[i])
		}
	}
	return nil
}

var (
	digests = regexp.MustCompile(`\b[0-9a-f]{12,64}\b`)
	numbers = regexp.MustCompile(`\b[0-9]+([.][0-9]+)?(s|m|h|d|B|KiB|MiB)([0-9]+s)?\b`)
	logged  = regexp.MustCompile(`^[IWE][0-9]{4} [0-9:.]+ +[0-9]+ [\w.]+:[0-9]+\]`)
	spaces  = regexp.MustCompile(`\s+`)
)

// Steady takes out of a line what changes from run to run.
func Steady(line string) string {
	line = logged.ReplaceAllString(line, "LOGGED")
	line = digests.ReplaceAllString(line, "DIGEST")
	line = numbers.ReplaceAllString(line, "NUMBER")
	return strings.TrimSpace(spaces.ReplaceAllString(line, " "))
}
