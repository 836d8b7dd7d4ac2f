// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bytesize

import (
	"strings"
	"testing"
)

func TestString(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1.0 MiB", 1 << 20: "1.0 MiB", 3 << 29: "1.5 GiB", 1<<63 - 1: "8.0 EiB",
	} {
		if got := String(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
		if got, want := Short(n), strings.ReplaceAll(want, " ", ""); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}
