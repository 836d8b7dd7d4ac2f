// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unified

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func diff(t *testing.T, a, b string) (string, error) {
	t.Helper()
	var out strings.Builder
	err := Write(t.Context(), &out, Text{"a", []byte(a)}, Text{"b", []byte(b)})
	return out.String(), err
}

func TestWrite(t *testing.T) {
	const head = "--- a\n+++ b\n"
	for _, test := range []struct{ name, a, b, want string }{
		{"the same", "1\n2\n", "1\n2\n", ""},
		{"nothing", "", "", ""},
		{"new", "", "y", head + "@@ -0,0 +1 @@\n+y\n\\ No newline at end of file\n"},
		{"gone", "x", "", head + "@@ -1 +0,0 @@\n-x\n\\ No newline at end of file\n"},
		{"one line", "a: 1\nb: 2\n", "a: 2\nb: 2\n", head + "@@ -1,2 +1,2 @@\n-a: 1\n+a: 2\n b: 2\n"},
		{"an end of line", "1\n2", "1\n2\n", head + "@@ -1,2 +1,2 @@\n 1\n-2\n\\ No newline at end of file\n+2\n"},
		{"near", "1\n2\n3\n4\n5\n6\n7\n8\n", "1\nx\n3\n4\n5\n6\n7\n9\n", head + "@@ -1,8 +1,8 @@\n 1\n-2\n+x\n 3\n 4\n 5\n 6\n 7\n-8\n+9\n"},
		{"far", "1\n2\n3\n4\n5\n6\n7\n8\n9\n0\n", "x\n2\n3\n4\n5\n6\n7\n8\n9\ny\n", head + "@@ -1,4 +1,4 @@\n-1\n+x\n 2\n 3\n 4\n@@ -7,4 +7,4 @@\n 7\n 8\n 9\n-0\n+y\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, err := diff(t, test.a, test.b); err != nil || got != test.want {
				t.Errorf("%v, it writes\n%s, not\n%s", err, got, test.want)
			}
		})
	}
}

// Whatever differs, patch makes one of the other of it.
func TestPatch(t *testing.T) {
	if _, err := exec.LookPath("patch"); err != nil {
		t.Skip("there is no patch here")
	}
	random := rand.New(rand.NewPCG(1, 2))
	text := func() string {
		var lines strings.Builder
		for range random.IntN(40) {
			lines.WriteString(string("abcd"[random.IntN(4)]) + "\n")
		}
		return strings.TrimSuffix(lines.String(), strings.Repeat("\n", random.IntN(2)))
	}
	for range 50 {
		a, b := text(), text()
		changes, err := diff(t, a, b)
		if err != nil {
			t.Fatal(err)
		}
		if changes == "" {
			continue
		}
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte(a), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("patch", "--silent", path)
		cmd.Stdin = strings.NewReader(changes)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s\n%q\n%s", err, out, a, changes)
		}
		// A file that nothing is left of is removed.
		if got, err := os.ReadFile(path); err != nil && b != "" || string(got) != b {
			t.Fatalf("%q is made of %q, not %q:\n%s", got, a, b, changes)
		}
	}
}

// Very many short lines are compared if few of them differ, and otherwise given up soon.
func TestManyLines(t *testing.T) {
	const n = 340_000
	lines := func(text string) string { return strings.Repeat(text, n) }
	few := "first\n" + lines("x\n") + "middle\n" + lines("x\n") + "last\n"
	changes, err := diff(t, few, strings.ReplaceAll(few, "middle", "other"))
	if err != nil || !strings.Contains(changes, "-middle\n+other\n") {
		t.Errorf("%v: %s", err, changes)
	}
	ends := strings.ReplaceAll(strings.ReplaceAll(few, "first", "1st"), "last", "end")
	if changes, err := diff(t, few, ends); err != nil || strings.Count(changes, "@@ -") != 2 {
		t.Errorf("%v: %s", err, changes)
	}
	if changes, err := diff(t, "a\nb\n", "a\n"+lines("x\n")+"b\n"); err != nil || strings.Count(changes, "\n+x") != n {
		t.Errorf("of lines that were only added it says %v, and shows %d bytes", err, len(changes))
	}
	if _, err := diff(t, lines("x\n"), lines("y\n")); !errors.Is(err, ErrTooDifferent) {
		t.Errorf("%v", err)
	}
	if _, err := diff(t, lines("x\ny\n"), lines("y\nx\nx\n")); !errors.Is(err, ErrTooDifferent) {
		t.Errorf("%v", err)
	}
}

func TestEnds(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	over := errors.New("over")
	cancel(over)
	if err := Write(ctx, &strings.Builder{}, Text{Content: []byte("1\n2\n")}, Text{Content: []byte("2\n1\n")}); !errors.Is(err, over) {
		t.Errorf("%v", err)
	}
}
