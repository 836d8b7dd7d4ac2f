// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"errors"
	"strings"
	"testing"
)

func TestParseDigest(t *testing.T) {
	hex := strings.Repeat("0123456789abcdef", 4)
	for _, tc := range []struct {
		name, digest string
		ok           bool
	}{
		{"sha256", "sha256:" + hex, true},
		{"empty", "", false},
		{"no algorithm", hex, false},
		{"no hex", "sha256:", false},
		{"another algorithm", "sha512:" + hex + hex, false},
		{"upper-case algorithm", "SHA256:" + hex, false},
		{"upper-case hex", "sha256:" + strings.ToUpper(hex), false},
		{"one short", "sha256:" + hex[1:], false},
		{"one long", "sha256:" + hex + "0", false},
		{"a letter after f", "sha256:" + hex[1:] + "g", false},
		{"a path", "sha256:" + strings.Repeat("../", 21) + "0", false},
		{"space before", " sha256:" + hex, false},
		{"line end after", "sha256:" + hex[1:] + "\n", false},
		{"very long", strings.Repeat("a", 1<<16), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseDigest(tc.digest)
			if tc.ok {
				if err != nil || got != hex {
					t.Fatalf("got %q, %v", got, err)
				}
				return
			}
			if !errors.Is(err, ErrInvalidDigest) {
				t.Fatalf("got error %v", err)
			}
			if len(err.Error()) > 200 {
				t.Fatalf("the error repeats %d bytes of input", len(err.Error()))
			}
		})
	}
}
