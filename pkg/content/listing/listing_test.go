// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package listing

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func write(t *testing.T, path string, entries ...Entry) string {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b, path)
	for _, e := range entries {
		if err := w.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestDocument(t *testing.T) {
	got := write(t, "a/b",
		Entry{Name: "f", Type: File, Mode: "0644", Size: 3, Digest: "sha256:x"},
		Entry{Name: "caf\xe9", Type: SymbolicLink, Mode: "0777", LinkTarget: "\xff"})
	want := `{"path":"a/b","entries":[
{"name":"f","type":"File","mode":"0644","size":3,"digest":"sha256:x"},
{"name":"caf\ufffd","rawName":"Y2Fm6Q==","type":"SymbolicLink","mode":"0777","linkTarget":"\ufffd","rawLinkTarget":"/w=="}
]}
`
	if got != want {
		t.Errorf("got %s", got)
	}
	if empty := write(t, ""); !json.Valid([]byte(empty)) || empty != "{\"path\":\"\",\"entries\":[\n]}\n" {
		t.Errorf("of nothing: %q", empty)
	}
	var names []string
	err := Read(strings.NewReader(got), func(e Entry) error {
		names = append(names, e.Path()+">"+e.Target())
		return nil
	})
	if err != nil || strings.Join(names, " ") != "f> caf\xe9>\xff" {
		t.Errorf("read again: %q, %v", names, err)
	}
}

func TestReadFails(t *testing.T) {
	document := write(t, "", Entry{Name: "f", Type: File, Mode: "0644"})
	for size := range strings.TrimSpace(document) {
		if err := Read(strings.NewReader(document[:size]), func(Entry) error { return nil }); err == nil {
			t.Errorf("cut after %d bytes: no error", size)
		}
	}
	for _, other := range []string{`{}`, `[]`, `{"entries":{}}`, `{"entries":[1]}`, `null`} {
		if err := Read(strings.NewReader(other), func(Entry) error { return nil }); err == nil {
			t.Errorf("%s: no error", other)
		}
	}
	newer := `{"kind":"x","more":{"a":[1]},"entries":[{"name":"f","new":1}],"end":2}`
	if err := Read(strings.NewReader(newer), func(Entry) error { return nil }); err != nil {
		t.Errorf("of a newer version: %v", err)
	}
	enough := errors.New("enough")
	if err := Read(strings.NewReader(document), func(Entry) error { return enough }); err != enough {
		t.Errorf("got %v", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("gone") }

func TestWriteFails(t *testing.T) {
	if err := NewWriter(failing{}, "").Add(Entry{}); err == nil {
		t.Error("an entry: no error")
	}
	if err := NewWriter(failing{}, "").Close(); err == nil {
		t.Error("the end: no error")
	}
}
