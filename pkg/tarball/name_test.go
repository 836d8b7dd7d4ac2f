// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestUnder(t *testing.T) {
	for _, c := range []struct {
		name, root, want string
		inside           bool
	}{
		{"a/b", "", "a/b", true},
		{"a/b", "a", "b", true},
		{"a", "a", "", true},
		{"ab", "a", "", false},
		{"ab/c", "a", "", false},
		{"b", "a", "", false},
		{"a/b/c", "a/b", "c", true},
	} {
		got, inside := under(c.name, c.root)
		if inside != c.inside || (inside && got != c.want) {
			t.Errorf("under(%q, %q) = %q, %v", c.name, c.root, got, inside)
		}
	}
}

// Whatever links an archive has, whoever follows one stays inside: the tree is
// made on disk and every link that was let through is followed by the kernel's rules.
func TestLinksThatPassStayInside(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	parts := []string{"a", "b", "l", "m", "..", "..", ".", ""}
	followed := 0
	for range 150 {
		outer := t.TempDir()
		root := filepath.Join(outer, "x", "root")
		for _, dir := range []string{"a/a/a", "a/b", "b/a", "b/b/a"} {
			must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
		}
		// What lies outside has the same names, so that a way out leads somewhere.
		for _, dir := range []string{"a/a", "b/b", "x/a/b", "x/b/a"} {
			must(t, os.MkdirAll(filepath.Join(outer, dir), 0o755))
		}
		var links []string
		for _, name := range []string{"l", "m", "a/l", "a/m", "b/l", "a/a/l", "b/b/m", "a/a/a/l"} {
			target := make([]string, 1+random.IntN(5))
			for i := range target {
				target[i] = parts[random.IntN(len(parts))]
			}
			to := strings.Join(target, "/")
			if checkLink(name, to, Limits{}.effective()) == nil {
				must(t, os.Symlink(to, filepath.Join(root, name)))
				links = append(links, name)
			}
		}
		real, err := filepath.EvalSymlinks(root)
		must(t, err)
		for _, name := range links {
			to, err := filepath.EvalSymlinks(filepath.Join(root, name))
			if err != nil {
				continue // it leads nowhere, or round and round
			}
			followed++
			if to != real && !strings.HasPrefix(to, real+"/") {
				t.Fatalf("link %q leads to %q, outside %q", name, to, real)
			}
		}
	}
	if followed < 50 {
		t.Errorf("only %d links led anywhere", followed)
	}
}

func TestHeaderNumbers(t *testing.T) {
	big := Entry{Name: "big", Type: TypeFile, Mode: 0o644, Size: maxOctalSize}
	if got := len(appendHeader(nil, big)); got != blockSize {
		t.Errorf("a size of eleven digits takes %d bytes", got)
	}
	big.Size++
	header := appendHeader(nil, big)
	if !bytes.Contains(header, []byte("19 size=8589934592\n")) || len(header) != 3*blockSize {
		t.Errorf("a size of twelve digits gives %q", header)
	}
	e, ok := parseBlock(header[2*blockSize:])
	if !ok || !parseRecords("19 size=8589934592\n", &e) || e != big {
		t.Errorf("it is read as %+v", e)
	}
	// The length of a record counts itself, also where that adds a digit.
	for n := range 1200 {
		var b strings.Builder
		writeRecord(&b, "path", strings.Repeat("p", n))
		var e Entry
		if !parseRecords(b.String(), &e) || len(e.Name) != n {
			t.Fatalf("record %q is not read", b.String())
		}
	}
}
