// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package readme

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
)

// Pages returns the paths of all pages of a tree: its Markdown files, but for what is built.
func Pages(root string) ([]string, error) {
	var pages []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (entry.Name() == "_output" || strings.HasPrefix(entry.Name(), ".")):
			return fs.SkipDir
		case filepath.Ext(path) == ".md":
			pages = append(pages, path)
		}
		return nil
	})
	return pages, err
}

var (
	fenced  = regexp.MustCompile("(?ms)^```.*?^```")
	links   = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	linked  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// BrokenLinks returns what is wrong with the links of a page to files of the tree, and to headings in them.
func BrokenLinks(page string) ([]string, error) {
	text, err := prose(page)
	if err != nil {
		return nil, err
	}
	var broken []string
	for _, match := range links.FindAllStringSubmatch(text, -1) {
		target, err := url.Parse(match[1])
		if err != nil {
			return nil, fmt.Errorf("%s: link %q: %w", page, match[1], err)
		}
		if target.Scheme != "" {
			continue
		}
		file := page
		if target.Path != "" {
			file = filepath.Join(filepath.Dir(page), filepath.FromSlash(target.Path))
		}
		if _, err := os.Stat(file); err != nil {
			broken = append(broken, fmt.Sprintf("%s: %s is not there", page, match[1]))
			continue
		}
		if target.Fragment == "" {
			continue
		}
		anchors, err := anchorsOf(file)
		if err != nil {
			return nil, err
		}
		if !anchors[target.Fragment] {
			broken = append(broken, fmt.Sprintf("%s: %s has no such heading", page, match[1]))
		}
	}
	return broken, nil
}

// prose is a page without its fenced blocks.
func prose(page string) (string, error) {
	raw, err := os.ReadFile(page)
	return fenced.ReplaceAllString(string(raw), ""), err
}

// anchorsOf are the names of the headings of a page, as GitHub makes them.
func anchorsOf(page string) (map[string]bool, error) {
	text, err := prose(page)
	if err != nil {
		return nil, err
	}
	anchors := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(text, -1) {
		name := anchor(linked.ReplaceAllString(match[1], "$1"))
		for i := 1; anchors[name]; i++ {
			name = fmt.Sprintf("%s-%d", anchor(match[1]), i)
		}
		anchors[name] = true
	}
	return anchors, nil
}

func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}
