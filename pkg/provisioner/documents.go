// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package provisioner

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v2"
	utiljson "sigs.k8s.io/json"
)

// document is one document of a file.
type document struct {
	number int // counted from 1, empty documents included
	object any
}

// documents yields the documents of a file that are not empty. After an error
// it ends.
type documents = iter.Seq2[document, error]

// yamlDocuments splits a stream of YAML documents as YAML 1.2, section 9.2,
// does: a line that begins with "---" or "..." and white space ends a document,
// whatever it is inside of. Not more than one is in memory.
func yamlDocuments(s source) documents {
	return func(yield func(document, error) bool) {
		splitter := splitter{lines: bufio.NewReaderSize(s.r, 32<<10)}
		for {
			text, err := splitter.next()
			number, line := splitter.number, splitter.line
			switch {
			case err == io.EOF:
				return
			case errors.Is(err, errTooLarge):
				yield(document{}, s.tooLarge(number))
				return
			case err != nil:
				yield(document{}, s.failed(err))
				return
			}
			object, err := parseYAML(text)
			if err != nil {
				yield(document{}, s.refuse(number, "%s (the document begins at line %d)", err, line))
				return
			}
			if object != nil && !yield(document{number, object}, nil) {
				return
			}
		}
	}
}

// parseYAML returns nil for a document that is empty or null. The parser is the
// one below sigs.k8s.io/yaml, so values are read as kubectl reads them. What
// that package does on top, a conversion to JSON, writes a value out again for
// each of its aliases, and a small document could fill the memory so.
func parseYAML(text []byte) (any, error) {
	// JSON is YAML, but for tabs; and the other parser is far quicker.
	if trimmed := bytes.TrimSpace(text); len(trimmed) > 0 && trimmed[0] == '{' && json.Valid(trimmed) {
		return parseJSON(trimmed)
	}
	if !utf8.Valid(text) {
		return nil, errors.New("is not UTF-8")
	}
	if err := checkValues(text); err != nil {
		return nil, err
	}
	var object any
	err := yaml.UnmarshalStrict(text, &object)
	if mistyped, ok := errors.AsType[*yaml.TypeError](err); ok {
		return nil, errors.New("yaml: " + strings.Join(mistyped.Errors, "; "))
	}
	return object, err
}

// parseJSON decodes one value and refuses duplicate keys.
func parseJSON(text []byte) (any, error) {
	if err := checkValues(text); err != nil {
		return nil, err
	}
	var object any
	strict, err := utiljson.UnmarshalStrict(text, &object, utiljson.DisallowDuplicateFields)
	if err == nil {
		err = errors.Join(strict...)
	}
	return object, err
}

// checkValues counts the characters after which a value can begin, texts
// included. A parsed value takes a hundred times the two bytes that it can be
// written in.
func checkValues(text []byte) error {
	n := 0
	for _, c := range text {
		switch c {
		case ',', ':', '-', '?', '[', '{':
			n++
		}
	}
	if n > MaxValues {
		return fmt.Errorf("may hold more than %d values", MaxValues)
	}
	return nil
}

// splitter splits lines into documents.
type splitter struct {
	lines  *bufio.Reader
	number int    // of the document that next returned
	line   int    // at which it begins
	read   int    // lines so far
	begun  bool   // whether the document began with a marker
	filled bool   // whether it holds more than comments and directives
	start  []byte // the line with the marker that begins the next document
	buf    []byte
	eof    bool
}

var byteOrderMark = []byte("\xef\xbb\xbf")

// next returns the next document, which is valid until the call after. It
// returns io.EOF at the end.
func (s *splitter) next() ([]byte, error) {
	if s.eof {
		return nil, io.EOF
	}
	s.number++
	s.line = s.read + 1
	s.buf, s.filled = s.buf[:0], false
	if s.begun {
		s.line = s.read
		s.buf = append(s.buf, s.start...)
	}
	for {
		line, err := s.readLine()
		if err == io.EOF {
			s.eof = true
			return s.buf, nil
		}
		if err != nil {
			return nil, err
		}
		// What stands before the first marker, or between "..." and a marker, is
		// the head of the document that the marker begins if it is nothing but
		// comments, and directives, which need the marker.
		ends := s.begun || s.filled
		switch {
		case isMarker(line, "---") && ends:
			s.begun = true
			s.start = bytes.Clone(line)
			return s.buf, nil
		case isMarker(line, "...") && ends:
			s.begun = false
			return s.buf, nil
		case isMarker(line, "..."):
			continue
		case isMarker(line, "---"):
			s.begun = true
		default:
			s.filled = s.filled || !isHead(line)
		}
		if err := s.add(line); err != nil {
			return nil, err
		}
	}
}

func (s *splitter) add(line []byte) error {
	if len(line) > MaxDocument-len(s.buf) {
		return errTooLarge
	}
	s.buf = append(s.buf, line...)
	return nil
}

// readLine returns a line with its end. It grows no larger than a document may be.
func (s *splitter) readLine() ([]byte, error) {
	line, err := s.lines.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		long := bytes.Clone(line)
		for errors.Is(err, bufio.ErrBufferFull) {
			if len(long) > MaxDocument {
				return nil, errTooLarge
			}
			line, err = s.lines.ReadSlice('\n')
			long = append(long, line...)
		}
		line = long
	}
	if err == io.EOF && len(line) > 0 {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	if s.read++; s.read == 1 {
		line = bytes.TrimPrefix(line, byteOrderMark)
	}
	return line, nil
}

// isMarker reports whether line begins with marker and is one.
func isMarker(line []byte, marker string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(marker))
	return ok && (len(rest) == 0 || bytes.IndexByte([]byte(" \t\r\n"), rest[0]) >= 0)
}

// isHead reports whether a line is blank, a comment or a directive.
func isHead(line []byte) bool {
	line = bytes.TrimSpace(line)
	return len(line) == 0 || line[0] == '#' || line[0] == '%'
}

// jsonDocuments yields the values of a stream of JSON values.
func jsonDocuments(s source) documents {
	return func(yield func(document, error) bool) {
		window := &window{r: s.r}
		decoder := json.NewDecoder(window)
		for number := 1; ; number++ {
			window.end = decoder.InputOffset() + MaxDocument
			var text json.RawMessage
			err := decoder.Decode(&text)
			if err == io.EOF {
				return
			}
			if err != nil {
				yield(document{}, window.explain(s, number, err))
				return
			}
			object, err := parseJSON(text)
			if err != nil {
				yield(document{}, s.refuse(number, "%s", err))
				return
			}
			if object != nil && !yield(document{number, object}, nil) {
				return
			}
		}
	}
}

// window lets a decoder read no further than end, and remembers errors of r.
type window struct {
	r      io.Reader
	offset int64
	end    int64
	err    error
}

func (w *window) Read(p []byte) (int, error) {
	if w.offset >= w.end {
		w.err = errTooLarge
		return 0, w.err
	}
	n, err := w.r.Read(p[:min(int64(len(p)), w.end-w.offset)])
	w.offset += int64(n)
	if err != nil && err != io.EOF {
		w.err = err
	}
	return n, err
}

// explain tells whose fault an error of the decoder is.
func (w *window) explain(s source, number int, err error) error {
	switch {
	case errors.Is(w.err, errTooLarge):
		return s.tooLarge(number)
	case w.err != nil:
		return s.failed(w.err)
	default:
		return s.refuse(number, "%s", err)
	}
}
