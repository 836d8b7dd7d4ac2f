// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// moves reports whether a character does something to a terminal, or to how others are shown: a control character, a format
// character (those that turn the direction of text, and those that cannot be seen), or a separator of lines that is none here.
func moves(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}

// clean is text that others wrote, made so that it does nothing to a terminal, reads as it is, and stays on its line.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case moves(r):
			return utf8.RuneError
		}
		return r
	}, text)
}

// output is where a command writes: to a program as it is, and to a terminal without what does something to it. JSON says the
// same in both cases.
func (s *session) output(format string) io.Writer {
	if !isTerminal(s.Out) {
		return s.Out
	}
	return &harmless{out: s.Out, json: format == "json"}
}

// line is a name that has a line of its own: to a program as it is, and to a terminal without what ends the line, which would let a name
// look like several.
func (s *session) line(name string) string {
	if isTerminal(s.Out) {
		return clean(name)
	}
	return name
}

// harmless passes text on, with other characters in place of those that do something to a terminal, but for the ends of lines and
// tabs.
type harmless struct {
	out  io.Writer
	json bool // they can be written in another way
	// rest is the beginning of a character whose end is in the next call. Whoever writes ends with the end of a line.
	rest []byte
}

// Write is an io.Writer's. It returns the number of bytes that were given to it.
func (h *harmless) Write(p []byte) (int, error) {
	text := append(h.rest, p...)
	var b strings.Builder
	for len(text) > 0 && utf8.FullRune(text) {
		r, size := utf8.DecodeRune(text)
		text = text[size:]
		switch {
		case r == '\n' || r == '\t' || !moves(r):
			b.WriteRune(r)
		case h.json:
			b.WriteString(escaped(r))
		default:
			b.WriteRune(utf8.RuneError)
		}
	}
	h.rest = append([]byte(nil), text...)
	if _, err := io.WriteString(h.out, b.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// escaped is a character in a string of JSON.
func escaped(r rune) string {
	if high, low := utf16.EncodeRune(r); high != unicode.ReplacementChar {
		return fmt.Sprintf(`\u%04x\u%04x`, high, low)
	}
	return fmt.Sprintf(`\u%04x`, r)
}
