// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"runtime"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Platform{
		"linux/amd64":                      {OS: "linux", Architecture: "amd64"},
		"linux/arm/v7":                     {OS: "linux", Architecture: "arm", Variant: "v7"},
		"linux/amd64/v3":                   {OS: "linux", Architecture: "amd64", Variant: "v3"},
		"linux/s390x":                      {OS: "linux", Architecture: "s390x"},
		"":                                 {},
		"linux":                            {},
		"amd64":                            {},
		"linux/":                           {},
		"linux//v8":                        {},
		"linux/arm64/":                     {},
		"linux/arm64/v8/x":                 {},
		"windows/amd64":                    {},
		"linux/x86_64":                     {},
		"linux/aarch64":                    {},
		"linux/AMD64":                      {},
		"linux/amd64\n":                    {},
		"linux/-":                          {},
		" linux/amd64":                     {},
		"linux/a,b":                        {},
		"linux/" + strings.Repeat("a", 58): {},
	} {
		got, err := Parse(text)
		if got != want || (err == nil) != (want != Platform{}) {
			t.Errorf("Parse(%q) = %+v, %v", text, got, err)
		}
		if err == nil && got.String() != text {
			t.Errorf("Parse(%q) is written %q", text, got)
		}
	}
}

func TestErrorsSayWhatToWrite(t *testing.T) {
	for text, word := range map[string]string{"linux/x86_64": "amd64", "windows/amd64": "linux", "arm64": "linux/arm64"} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("Parse(%q): %v does not name %q", text, err, word)
		}
	}
}

func TestOwn(t *testing.T) {
	if got, err := Parse(Own().String()); err != nil || got != Own() || got.Architecture != runtime.GOARCH {
		t.Errorf("got %+v, %v", got, err)
	}
	if !(Platform{}).IsZero() || (Platform{}).String() != "" || Own().IsZero() {
		t.Error("the zero value is none, and nothing else is")
	}
}
