// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package unified compares texts by their lines and writes how they differ in the unified format, as diff -u does. What the search for
// the differences takes is bounded: what differs in more lines than that allows is not compared to the end. Lines that were only added, or
// only left out, in one place need no search, and there may be any number of them. Beside the search each line takes some tens of bytes, so
// whoever calls bounds the texts.
package unified

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

const (
	// around is how many lines that are the same are shown before and after a change.
	around = 3
	// maxEdits is how many lines may differ where they are searched for. What is remembered to find them are 2 bytes for the square
	// of it, 18 MB.
	maxEdits = 3000
	// maxSteps bounds the comparisons of lines. They take less than a second.
	maxSteps = 50_000_000
)

// ErrTooDifferent means that more lines differ than are searched for.
var ErrTooDifferent = errors.New("too many lines differ")

// Text is one side of a comparison.
type Text struct {
	// Name stands in the head.
	Name    string
	Content []byte
}

// Write writes to w how b differs from a: nothing if they are the same. The error is ErrTooDifferent, before anything is written, that
// of ctx, or that of w.
func Write(ctx context.Context, w io.Writer, a, b Text) error {
	c := &comparison{a: split(a.Content), b: split(b.Content)}
	edits, err := c.compare(ctx)
	if err != nil || len(edits) == 0 {
		return err
	}
	out := bufio.NewWriter(w)
	// A bufio.Writer keeps its first error for Flush.
	fmt.Fprintf(out, "--- %s\n+++ %s\n", a.Name, b.Name)
	for len(edits) > 0 {
		n := 1
		for n < len(edits) && edits[n].a-edits[n-1].endA() <= 2*around {
			n++
		}
		c.hunk(out, edits[:n])
		edits = edits[n:]
	}
	return out.Flush()
}

// split returns the lines of a text, each with its end.
func split(text []byte) [][]byte {
	lines := make([][]byte, 0, bytes.Count(text, []byte{'\n'})+1)
	for line := range bytes.Lines(text) {
		lines = append(lines, line)
	}
	return lines
}

type comparison struct {
	a, b [][]byte
}

// hunk writes changes that are near to each other, with the lines around them.
func (c *comparison) hunk(out *bufio.Writer, edits []edit) {
	first, last := edits[0], edits[len(edits)-1]
	before := min(around, first.a)
	after := min(around, len(c.a)-last.endA())
	fromA, fromB := first.a-before, first.b-before
	fmt.Fprintf(out, "@@ -%s +%s @@\n", span(fromA, last.endA()+after), span(fromB, last.endB()+after))
	at := fromA
	for _, e := range edits {
		write(out, ' ', c.a[at:e.a])
		write(out, '-', c.a[e.a:e.endA()])
		write(out, '+', c.b[e.b:e.endB()])
		at = e.endA()
	}
	write(out, ' ', c.a[at:last.endA()+after])
}

// span says which lines a hunk is about, from 0 on, the end excluded.
func span(from, to int) string {
	switch n := to - from; n {
	case 0:
		return fmt.Sprintf("%d,0", from)
	case 1:
		return fmt.Sprint(from + 1)
	default:
		return fmt.Sprintf("%d,%d", from+1, n)
	}
}

func write(out *bufio.Writer, mark byte, lines [][]byte) {
	for _, line := range lines {
		out.WriteByte(mark)
		out.Write(line)
		if line[len(line)-1] != '\n' {
			out.WriteString("\n\\ No newline at end of file\n")
		}
	}
}
