// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package readme

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestSteps(t *testing.T) {
	path := filepath.Join(t.TempDir(), "README.md")
	text := "text\n<!-- session: a -->\n```console\n$ echo one\none\n$ cat <<E\n> x\n> E\nx\n```\n<!-- session: b -->\n```console\n$ false\n```\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	steps, err := Steps(path, "a")
	if err != nil {
		t.Fatal(err)
	}
	want := []Step{{"echo one", []string{"one"}}, {"cat <<E\nx\nE", []string{"x"}}}
	if !slices.EqualFunc(steps, want, func(a, b Step) bool { return a.Command == b.Command && slices.Equal(a.Output, b.Output) }) {
		t.Errorf("got %q, want %q", steps, want)
	}
	for _, s := range steps {
		if err := s.Run(t.Context(), t.TempDir(), os.Environ()); err != nil {
			t.Error(err)
		}
	}
	if _, err := Steps(path, "c"); err == nil {
		t.Error("a session that is not there was found")
	}
}

func TestRunComparesOutput(t *testing.T) {
	for name, test := range map[string]struct {
		step Step
		want string // of the error; empty for none
	}{
		"same":            {Step{"echo a", []string{"a"}}, ""},
		"other":           {Step{"echo a", []string{"b"}}, `printed "a" where`},
		"more":            {Step{"echo a; echo b", []string{"a"}}, "printed 2 lines"},
		"less":            {Step{"true", []string{"a"}}, "printed 0 lines"},
		"fails":           {Step{"echo why >&2; exit 3", nil}, "why"},
		"digest":          {Step{"echo 0123456789abcdef", []string{"ffffffffffffffff"}}, ""},
		"age":             {Step{"echo x   12s", []string{"x 1m"}}, ""},
		"log":             {Step{`echo 'I1130 20:18:01.173418     818 fetch.go:148] "a"'`, []string{`I1201 01:02:03.000001 7 fetch.go:9] "a"`}}, ""},
		"another log":     {Step{`echo 'I1130 20:18:01.173418     818 fetch.go:148] "a"'`, []string{`I1130 20:18:01.173418     818 fetch.go:148] "b"`}}, "where"},
		"first in a pipe": {Step{"false | true", nil}, "exit status 1"},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.step.Run(t.Context(), t.TempDir(), os.Environ())
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got the error %v, want one with %q", err, test.want)
			}
		})
	}
}
