// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestReportFitsATerminationLog(t *testing.T) {
	for name, message := range map[string]string{
		"short":       "entry \"a\": is a device",
		"long":        strings.Repeat("x", 10_000),
		"escapes":     strings.Repeat("\x01", 10_000),
		"multi-byte":  strings.Repeat("ü", 5_000),
		"not UTF-8":   strings.Repeat("\xff", 10_000),
		"html escape": strings.Repeat("<", 10_000),
	} {
		t.Run(name, func(t *testing.T) {
			data, err := Report{Reason: ReasonContentRefused, Message: message}.Encode()
			if err != nil {
				t.Fatal(err)
			}
			if len(data) > maxReport {
				t.Errorf("%d bytes do not fit into a termination log", len(data))
			}
			r, err := ParseReport(string(data))
			if err != nil {
				t.Fatal(err)
			}
			if r.Reason != ReasonContentRefused || r.Message == "" || !utf8.ValidString(r.Message) {
				t.Errorf("got %q %q", r.Reason, r.Message)
			}
		})
	}
}

func TestParseReportRefusesWhatIsNone(t *testing.T) {
	for name, log := range map[string]string{
		"empty":             "",
		"text":              "panic: out of cheese",
		"list":              "[]",
		"no reason":         `{"message":"m"}`,
		"reason with space": `{"reason":"All fine","message":"m"}`,
		"cut off":           `{"reason":"ContentRefused","message":"m`,
	} {
		t.Run(name, func(t *testing.T) {
			if r, err := ParseReport(log); err == nil {
				t.Errorf("got %+v", r)
			}
		})
	}
}

func TestShortenKeepsCharactersWhole(t *testing.T) {
	for _, test := range []struct {
		in   string
		most int
		want string
	}{
		{"abc", 3, "abc"},
		{"abcdef", 5, "ab..."},
		{"üüüü", 6, "ü..."},
		{"abcdef", 2, "..."},
	} {
		if got := Shorten(test.in, test.most); got != test.want {
			t.Errorf("Shorten(%q, %d) = %q, want %q", test.in, test.most, got, test.want)
		}
	}
}
