// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package listing is the JSON document that lists a directory of a bundle's content. It is written and read as a
// stream, so that neither side has all of it in memory:
//
//	{"path":"manifests","entries":[
//	{"name":"app.yaml","type":"File","mode":"0644","size":390,"digest":"sha256:…"},
//	{"name":"current","type":"SymbolicLink","mode":"0777","linkTarget":"app.yaml"}
//	]}
//
// A document that breaks off is no JSON. Fields may be added.
package listing

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// MediaType is that of the document.
const MediaType = "application/json"

// Type is what an entry is.
type Type string

const (
	File         Type = "File"
	Directory    Type = "Directory"
	SymbolicLink Type = "SymbolicLink"
)

// Entry is an entry of a directory.
type Entry struct {
	// Name is the path below the directory that is listed: one component, or several joined by slashes where everything
	// below it is listed. In a name that is not UTF-8 the bytes that are not are replaced, and RawName has all of them.
	Name    string `json:"name"`
	RawName []byte `json:"rawName,omitempty"`
	Type    Type   `json:"type"`
	// Mode is the permission bits in octal.
	Mode string `json:"mode"`
	// Size is the length of a file in bytes.
	Size int64 `json:"size,omitempty"`
	// Digest is that of a file's bytes, and its entity tag without the quotes.
	Digest string `json:"digest,omitempty"`
	// LinkTarget is where a symbolic link leads, relative to the directory that it is in. RawLinkTarget is as RawName.
	LinkTarget    string `json:"linkTarget,omitempty"`
	RawLinkTarget []byte `json:"rawLinkTarget,omitempty"`
}

// Path is the name in all its bytes.
func (e *Entry) Path() string { return whole(e.Name, e.RawName) }

// Target is the target of a link in all its bytes.
func (e *Entry) Target() string { return whole(e.LinkTarget, e.RawLinkTarget) }

func whole(text string, raw []byte) string {
	if raw != nil {
		return string(raw)
	}
	return text
}

// raw is the bytes of a name that JSON cannot hold, and nil for others.
func raw(s string) []byte {
	if utf8.ValidString(s) {
		return nil
	}
	return []byte(s)
}

// Writer writes a document.
type Writer struct {
	w     io.Writer
	begun bool
	path  string
}

// NewWriter begins the document of the directory at a path; the root is "". It writes nothing yet.
func NewWriter(w io.Writer, path string) *Writer { return &Writer{w: w, path: path} }

// Add writes an entry. The raw fields are filled in as they are needed.
func (w *Writer) Add(e Entry) error {
	if err := w.begin(",\n"); err != nil {
		return err
	}
	e.RawName, e.RawLinkTarget = raw(e.Name), raw(e.LinkTarget)
	line, err := json.Marshal(&e)
	if err != nil {
		return err
	}
	_, err = w.w.Write(line)
	return err
}

// begin writes what comes before an entry: the start of the document, or what separates it from the last one.
func (w *Writer) begin(otherwise string) error {
	if w.begun {
		_, err := io.WriteString(w.w, otherwise)
		return err
	}
	w.begun = true
	path, err := json.Marshal(w.path)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w.w, "{\"path\":%s,\"entries\":[\n", path)
	return err
}

// Close ends the document.
func (w *Writer) Close() error {
	if err := w.begin("\n"); err != nil {
		return err
	}
	_, err := io.WriteString(w.w, "]}\n")
	return err
}

var errNotListing = errors.New("not the list of a directory")

// Read calls yield for the entries of a document, in their order, until it returns an error.
func Read(r io.Reader, yield func(Entry) error) error {
	d := json.NewDecoder(r)
	if err := expect(d, json.Delim('{')); err != nil {
		return err
	}
	found := false
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		if key != "entries" {
			var other json.RawMessage
			if err := d.Decode(&other); err != nil {
				return err
			}
			continue
		}
		found = true
		if err := readEntries(d, yield); err != nil {
			return err
		}
	}
	if err := expect(d, json.Delim('}')); err != nil {
		return err
	}
	if !found {
		return errNotListing
	}
	return nil
}

func readEntries(d *json.Decoder, yield func(Entry) error) error {
	if err := expect(d, json.Delim('[')); err != nil {
		return err
	}
	for d.More() {
		var e Entry
		if err := d.Decode(&e); err != nil {
			return err
		}
		if err := yield(e); err != nil {
			return err
		}
	}
	return expect(d, json.Delim(']'))
}

func expect(d *json.Decoder, want json.Delim) error {
	got, err := d.Token()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%w: %v in place of %v", errNotListing, got, want)
	}
	return nil
}
