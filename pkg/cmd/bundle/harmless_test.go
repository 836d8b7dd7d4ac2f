// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"encoding/json"
	"strings"
	"testing"
)

// What others wrote moves no cursor, turns no text around, and hides nothing.
func TestClean(t *testing.T) {
	for text, want := range map[string]string{
		"a\x1b[2Jb\rc\nd\u009be\tf":      "a\ufffd[2Jb\ufffdc d\ufffde f",
		"run\u202egpj.exe":               "run\ufffdgpj.exe",
		"\u2066a\u2069 \u200bb\ufeff":    "\ufffda\ufffd \ufffdb\ufffd",
		"a\u2028b\u2029c \U000e0041":     "a\ufffdb\ufffdc \ufffd",
		"größer, ελληνικά, עברית, 日本, 🦆": "größer, ελληνικά, עברית, 日本, 🦆",
		"not UTF-8: \xff":                "not UTF-8: \ufffd",
	} {
		if got := clean(text); got != want {
			t.Errorf("%q becomes %q, not %q", text, got, want)
		}
	}
}

func TestHarmless(t *testing.T) {
	const text = "a\tb\u202e\x1bc 日本 \U000e0041\n"
	for _, json := range []bool{false, true} {
		want := "a\tb\ufffd\ufffdc 日本 \ufffd\n"
		if json {
			want = "a\tb\\u202e\\u001bc 日本 \\udb40\\udc41\n"
		}
		for size := 1; size <= len(text); size++ {
			var out strings.Builder
			w := &harmless{out: &out, json: json}
			for rest := text; rest != ""; {
				n, err := w.Write([]byte(rest[:min(size, len(rest))]))
				if err != nil {
					t.Fatal(err)
				}
				rest = rest[n:]
			}
			if out.String() != want {
				t.Fatalf("in steps of %d bytes it writes %q, not %q", size, out.String(), want)
			}
		}
	}
}

func TestHarmlessJSONSaysTheSame(t *testing.T) {
	want := "\u202e, \U000e0041, \u00ad, \u009b"
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if _, err := (&harmless{out: &out, json: true}).Write(text); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil || got != want {
		t.Errorf("%s is %q, %v", out.String(), got, err)
	}
}
