// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package readme

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLinksOfAllPages(t *testing.T) {
	pages, err := Pages("../..")
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, page := range pages {
		broken, err := BrokenLinks(page)
		if err != nil {
			t.Error(err)
		}
		for _, b := range broken {
			t.Error(b)
		}
	}
}

func TestBrokenLinks(t *testing.T) {
	dir := t.TempDir()
	page := filepath.Join(dir, "a.md")
	for name, text := range map[string]string{
		page: "# A [link](b.md) & more\n[good](b.md#what-it-is-1) [here](#a-link--more) [far](https://example.com/#x)\n" +
			"[gone](c.md) [no heading](b.md#none) [not here](#b)\n```text\n[code](d.md)\n# b\n```\n",
		filepath.Join(dir, "b.md"): "## What it is\n## What it is\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	broken, err := BrokenLinks(page)
	if err != nil || len(broken) != 3 {
		t.Errorf("%q, %v", broken, err)
	}
}
