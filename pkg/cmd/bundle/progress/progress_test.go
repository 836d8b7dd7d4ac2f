// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestLine(t *testing.T) {
	for _, test := range []struct {
		name        string
		done, total int64
		rate        float64
		want        string
	}{
		{"half", 512 << 20, 1 << 30, 8 << 20, "app: 512.0 MiB of 1.0 GiB, 50%, 8.0 MiB/s, 1m04s left"},
		{"nothing comes", 10, 2048, 0, "app: 10 B of 2.0 KiB, 0%, waiting"},
		{"size unknown", 3 << 10, 0, 1024, "app: 3.0 KiB, 1.0 KiB/s"},
		{"the end", 2048, 2048, 100, "app: 2.0 KiB of 2.0 KiB, 100%, 100 B/s"},
		{"hours", 0, 1 << 40, 32 << 20, "app: 0 B of 1.0 TiB, 0%, 32.0 MiB/s, 9h06m left"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := Line("app", test.done, test.total, test.rate); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

func TestBarFits(t *testing.T) {
	if got := Bar("app.tar.gz", 300<<20, 1<<30, 5<<20, 100); !strings.HasPrefix(got, "app.tar.gz [===========") {
		t.Errorf("no bar in 100 columns: %q", got)
	}
	for width := range 120 {
		got := Bar("app.tar.gz", 300<<20, 1<<30, 5<<20, width)
		if len(got) > width {
			t.Fatalf("%d columns for %d: %q", len(got), width, got)
		}
	}
}

// The rate is that of the last seconds, and falls when nothing comes.
func TestLinesInAPipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		m := New(&out, "app", 0, 1<<20)
		m.Set(512 << 10)
		time.Sleep(lineEvery + time.Second)
		time.Sleep(lineEvery)
		m.Stop()
		want := "app: 512.0 KiB of 1.0 MiB, 50%, 51.2 KiB/s, 10s left\napp: 512.0 KiB of 1.0 MiB, 50%, waiting\n"
		if out.String() != want {
			t.Errorf("it says %q, want %q", out.String(), want)
		}
	})
}
