// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Files with more lines that differ than are looked for are said to differ.
func TestDiffOfManyLines(t *testing.T) {
	const n = 340_000
	var sides [2]string
	for i, line := range []string{"x\n", "y\n"} {
		sides[i] = t.TempDir()
		if err := os.WriteFile(filepath.Join(sides[i], "file"), []byte(strings.Repeat(line, n)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stdout, stderr, code := run(t, "diff", sides[0], sides[1])
	if code != ExitNo || !strings.Contains(stdout, "differ: 340000 lines in 664.1 KiB, 340000 lines in 664.1 KiB: too many of them to show") {
		t.Errorf("it ends with %d: %s%s", code, stdout, stderr)
	}
}
