// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package advice knows what the reasons in a bundle's conditions mean, and what to do about them. It reads that from
// docs/reasons.md, so that the program says what the page says.
package advice

import (
	"regexp"
	"strings"
	"sync"

	"rukpak.io/apiserver/docs"
)

// Advice is a row of the page.
type Advice struct {
	// Meaning says what is the matter.
	Meaning string
	// Remedy says what to do.
	Remedy string
}

// For returns what is known about a reason.
func For(reason string) (Advice, bool) {
	a, ok := table()[reason]
	return a, ok
}

var table = sync.OnceValue(func() map[string]Advice { return parse(docs.Reasons) })

var (
	link = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	name = regexp.MustCompile(`^[A-Z][A-Za-z]+$`)
)

// parse reads the tables of a page whose first column is "reason", and whose last is what to do. A row may be about several
// reasons, with commas in between.
func parse(page string) map[string]Advice {
	found := map[string]Advice{}
	inside := false
	for line := range strings.Lines(page) {
		cells, ok := row(line)
		if !ok {
			inside = false
			continue
		}
		if strings.EqualFold(cells[0], "reason") {
			inside = true
			continue
		}
		if !inside || len(cells) < 3 {
			continue
		}
		for reason := range strings.SplitSeq(cells[0], ",") {
			if reason = strings.TrimSpace(reason); name.MatchString(reason) {
				found[reason] = Advice{Meaning: cells[1], Remedy: cells[len(cells)-1]}
			}
		}
	}
	return found
}

// row splits a line of a table into its cells, as text.
func row(line string) ([]string, bool) {
	line = strings.TrimSpace(line)
	if len(line) < 2 || line[0] != '|' || line[len(line)-1] != '|' {
		return nil, false
	}
	cells := strings.Split(line[1:len(line)-1], "|")
	for i, cell := range cells {
		cell = link.ReplaceAllString(cell, "$1")
		cells[i] = strings.TrimSpace(strings.ReplaceAll(cell, "`", ""))
	}
	return cells, true
}
