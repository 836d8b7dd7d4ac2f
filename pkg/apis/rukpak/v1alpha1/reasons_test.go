// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// reasonsIn returns the constants of a file that are named Reason… and have a literal value, by name.
func reasonsIn(t *testing.T, file string) map[string]string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]string{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, name := range spec.Names {
			if !strings.HasPrefix(name.Name, "Reason") || i >= len(spec.Values) {
				continue
			}
			if literal, ok := spec.Values[i].(*ast.BasicLit); ok && literal.Kind == token.STRING {
				value, err := strconv.Unquote(literal.Value)
				if err != nil {
					t.Fatal(err)
				}
				reasons[name.Name] = value
			}
		}
		return true
	})
	return reasons
}

// TestReasonsAreDocumented holds the constants and the tables of docs/reasons.md against each other.
func TestReasonsAreDocumented(t *testing.T) {
	document, err := os.ReadFile("../../../../docs/reasons.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for name, value := range reasonsIn(t, "reasons.go") {
		if name != "Reason"+value {
			t.Errorf("%s is %q", name, value)
		}
		known[value] = true
	}
	if len(known) < 40 {
		t.Fatalf("only %d constants were found", len(known))
	}
	row := regexp.MustCompile(`(?m)^\| ([A-Z][A-Za-z]+) \| (.+) \| (.+) \|$`)
	_, tables, _ := strings.Cut(string(document), "## When all is well")
	seen := map[string]int{}
	for _, match := range row.FindAllStringSubmatch(tables, -1) {
		if !known[match[1]] {
			t.Errorf("docs/reasons.md explains %s, for which there is no constant", match[1])
		}
		seen[match[1]]++
	}
	for _, reason := range slices.Sorted(maps.Keys(known)) {
		if seen[reason] != 1 {
			t.Errorf("docs/reasons.md explains %s %d times", reason, seen[reason])
		}
	}
}

// TestReasonsOfTheServerArePublic looks for reasons that were given a name elsewhere, and forgotten here.
func TestReasonsOfTheServerArePublic(t *testing.T) {
	public := reasonsIn(t, "reasons.go")
	found := 0
	for _, folder := range []string{"../conditions", "../../../unpack", "../../../registry/bundle"} {
		err := filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") {
				return err
			}
			for name, value := range reasonsIn(t, path) {
				found++
				if public[name] != value {
					t.Errorf("%s: %s = %q is not in package v1alpha1", path, name, value)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found == 0 {
		t.Error("not even the reasons of the program in unpack pods were found")
	}
}
