// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package failpoint

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAFileActsOnceEachTimeItIsWritten(t *testing.T) {
	a := &armed{path: filepath.Join(t.TempDir(), "plan")}
	killed := 0
	hit := func(name string) { a.hit(name, func() { killed++ }) }
	hit("content/after-write")
	if killed != 0 {
		t.Fatal("killed without a file")
	}
	for round := 1; round <= 2; round++ {
		if err := os.WriteFile(a.path, []byte("content/after-write=exit@2"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"content/after-create", "content/after-write"} {
			if hit(name); killed != round-1 {
				t.Fatalf("round %d: killed at the first hit of %s", round, name)
			}
		}
		if hit("content/after-write"); killed != round {
			t.Fatalf("round %d: killed %d times", round, killed)
		}
		if _, err := os.Stat(a.path); !os.IsNotExist(err) {
			t.Fatalf("round %d: the file is still there: %v", round, err)
		}
		if hit("content/after-write"); killed != round {
			t.Fatalf("round %d: killed again without a file", round)
		}
	}
}
