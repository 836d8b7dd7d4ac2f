// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
)

// peak is the largest heap that was in use when it looked.
type peak struct{ bytes atomic.Uint64 }

func (p *peak) look() {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	p.bytes.Store(max(p.bytes.Load(), m.HeapInuse+m.StackInuse))
}

// looking looks every 16 MiB that pass by.
type looking struct {
	peak   *peak
	passed int
	r      io.Reader
	w      io.Writer
}

func (l *looking) pass(n int) {
	if l.passed += n; l.passed > 16<<20 {
		l.passed = 0
		l.peak.look()
	}
}

func (l *looking) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	l.pass(n)
	return n, err
}

func (l *looking) Write(p []byte) (int, error) {
	l.pass(len(p))
	return l.w.Write(p)
}

// A tree of 1 GiB that does not compress goes through all three, and memory
// stays what it is for a small one.
func TestMemoryDoesNotDependOnSize(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 2 GiB")
	}
	root := t.TempDir()
	random := rand.NewChaCha8([32]byte{7})
	for _, name := range []string{"a", "b", "c"} {
		f, err := os.Create(filepath.Join(root, name))
		must(t, err)
		_, err = io.CopyN(f, random, 1<<30/3)
		must(t, err)
		must(t, f.Close())
	}
	const mebibyte = 1 << 20
	measured := func(op string, most uint64, do func(p *peak)) {
		debug.FreeOSMemory()
		var before, after peak
		before.look()
		do(&after)
		grown := int64(after.bytes.Load()) - int64(before.bytes.Load())
		t.Logf("%s: %.1f MiB", op, float64(grown)/mebibyte)
		if after.bytes.Load() == 0 || grown > int64(most) {
			t.Errorf("%s takes %d bytes of memory, at most %d are good", op, grown, most)
		}
	}
	path := filepath.Join(t.TempDir(), "archive")
	out, err := os.Create(path)
	must(t, err)
	var want Summary
	measured("pack", 32*mebibyte, func(p *peak) {
		want, err = Pack(t.Context(), &looking{peak: p, w: out}, root, "", Limits{})
		must(t, err)
	})
	must(t, out.Close())
	in, err := os.Open(path)
	must(t, err)
	defer in.Close()
	measured("verify", 8*mebibyte, func(p *peak) {
		got, err := Verify(t.Context(), &looking{peak: p, r: in}, Limits{}, nil)
		must(t, err)
		if got != want {
			t.Errorf("verify says %+v, pack %+v", got, want)
		}
	})
	_, err = in.Seek(0, io.SeekStart)
	must(t, err)
	measured("canonicalize", 32*mebibyte, func(p *peak) {
		w := &looking{peak: p, w: io.Discard}
		got, err := Canonicalize(t.Context(), w, &looking{peak: p, r: in}, Options{Scratch: t.TempDir()})
		must(t, err)
		if got != want {
			t.Errorf("canonicalize says %+v, pack %+v", got, want)
		}
	})
}
