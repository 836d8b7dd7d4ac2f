// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package failpoint

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestNamesAreThoseInTheSource fails when a point is hit somewhere and not
// listed, so that no test ever walks the list and misses it, or the other way.
func TestNamesAreThoseInTheSource(t *testing.T) {
	call := regexp.MustCompile(`failpoint\.Hit\(([^)]*)\)`)
	var found []string
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range call.FindAllSubmatch(text, -1) {
			argument := string(m[1])
			name := strings.Trim(argument, `"`)
			if len(name) != len(argument)-2 {
				t.Errorf("%s: the name of a failpoint is a string literal, got %s", path, argument)
				continue
			}
			if slices.Contains(found, name) {
				t.Errorf("%s: failpoint %q is hit in two places", path, name)
			}
			found = append(found, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range found {
		if !slices.Contains(names, name) {
			t.Errorf("failpoint %q is hit and not listed in names", name)
		}
	}
	for _, name := range names {
		if !slices.Contains(found, name) {
			t.Errorf("failpoint %q is listed and never hit", name)
		}
	}
}

func TestNamesGivesACopy(t *testing.T) {
	Names()[0] = "changed"
	if names[0] == "changed" {
		t.Fatal("a caller changed the list of the package")
	}
}

func TestHitDoesNothingWithoutAPlan(t *testing.T) {
	Hit("content/after-create")
}
