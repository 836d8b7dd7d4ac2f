// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package advice

import "testing"

func TestFor(t *testing.T) {
	for _, reason := range []string{"WaitingForUpload", "ClassMissing", "LimitExceeded", "ImageNotFound", "ContentLost", "StorageFull"} {
		a, ok := For(reason)
		if !ok || a.Meaning == "" || a.Remedy == "" {
			t.Errorf("docs/reasons.md has no meaning or no remedy for %s", reason)
		}
	}
	if _, ok := For("reason"); ok {
		t.Error("the head of a table is taken for a reason")
	}
}

func TestParse(t *testing.T) {
	got := parse("text | with | bars\n\n| reason | meaning | status | remedy |\n| --- | --- | --- | --- |\n" +
		"| One, Two | it [is full](a.md#b) | x | set `spec.x` |\n| --- | --- | --- | --- |\n\n| condition | True | False |\n| Ready | a | b |\n")
	want := Advice{Meaning: "it is full", Remedy: "set spec.x"}
	if len(got) != 2 || got["One"] != want || got["Two"] != want {
		t.Errorf("parsed as %v", got)
	}
}
