// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
)

var errBroken = errors.New("broken")

// nextCut goes through lengths so that those around blocks come up, where cuts are hardest to see.
func nextCut(n int) int {
	if n%blockSize == 2 {
		return n + blockSize/2 - 2
	}
	if n%blockSize == blockSize/2 {
		return n + blockSize/2 - 1
	}
	return n + 1
}

func TestTruncationIsSeen(t *testing.T) {
	items := tree{
		{name: "a", mode: 0o644, content: strings.Repeat("a", 700)},
		{name: strings.Repeat("long/", 30) + "zeros", mode: 0o644, content: strings.Repeat("\x00", 1024)},
	}
	for name, data := range map[string][]byte{"pax": items.tar(t, tar.FormatPAX), "gnu": items.tar(t, tar.FormatGNU)} {
		for n := 1; n <= len(data)-endSize; n = nextCut(n) {
			_, err := Canonicalize(t.Context(), io.Discard, bytes.NewReader(data[:n]), Options{})
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("%s, the first %d bytes: %v", name, n, err)
			}
		}
	}
	canonical, _, err := canonicalize(t, items.tar(t, tar.FormatPAX), Options{})
	must(t, err)
	for n := range len(canonical) {
		if _, err := verify(t, canonical[:n], Limits{}); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("verify, the first %d bytes: %v", n, err)
		}
		if n < 2 {
			continue // no gzip yet
		}
		if _, err := Canonicalize(t.Context(), io.Discard, bytes.NewReader(canonical[:n]), Options{}); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("canonicalize, the first %d bytes: %v", n, err)
		}
	}
}

func TestInputsThatAreNoTar(t *testing.T) {
	good := vectors()["plain"].tar(t, tar.FormatUSTAR)
	damaged := bytes.Clone(good)
	damaged[blockSize] ^= 1 // the header of the second entry
	for name, c := range map[string]struct {
		data []byte
		says string
	}{
		"nothing":             {nil, "empty"},
		"text":                {[]byte("hello"), "5 bytes"},
		"long text":           {bytes.Repeat([]byte("hello "), 1000), "first entry"},
		"a gzip of text":      {gzipped(t, bytes.Repeat([]byte("hello "), 1000)), "first entry"},
		"a zip":               {[]byte("PK\x03\x04 and more"), "a zip archive, and only tar and tar.gz are read"},
		"an xz":               {[]byte("\xfd7zXZ\x00 and more"), "compressed with xz, and only tar and tar.gz are read"},
		"a zstd":              {[]byte("\x28\xb5\x2f\xfd and more"), "compressed with zstd"},
		"a bzip2":             {[]byte("BZh91AY&SY and more"), "compressed with bzip2"},
		"not a bzip2":         {[]byte("BZh9, says a text"), "17 bytes"},
		"a damaged header":    {damaged, `after entry "manifests/"`},
		"a damaged gzip":      {[]byte("\x1f\x8bxxxxxxxxxxxxxxxxxxxxxxxxxxxx"), "gzip"},
		"rubbish after a tar": {append(bytes.Clone(good), "rubbish"...), "after the end"},
		"a tar after a tar":   {append(bytes.Clone(good), good...), "after the end"},
		"rubbish after gzip":  {append(gzipped(t, good), "rubbish rubbish"...), "damaged"},
		"endless zeros":       {append(bytes.Clone(good), make([]byte, maxTrailer+blockSize)...), "after the end"},
	} {
		_, _, err := canonicalize(t, c.data, Options{})
		if !errors.Is(err, ErrNotTar) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, summary, err := canonicalize(t, make([]byte, 20*blockSize), Options{}); err != nil || summary.Files != 0 {
		t.Errorf("an empty tar: %+v, %v", summary, err)
	}
}

func TestErrorsOfTheReaderComeBack(t *testing.T) {
	foreign := imageTree().tar(t, tar.FormatGNU)
	canonical, want, err := canonicalize(t, foreign, Options{})
	must(t, err)
	readers := func(data []byte, n int) map[string]io.Reader {
		head := bytes.NewReader(data[:n])
		return map[string]io.Reader{
			"error after data": io.MultiReader(head, iotest.ErrReader(errBroken)),
			"error with data":  iotest.DataErrReader(io.MultiReader(bytes.NewReader(data[:n]), iotest.ErrReader(errBroken))),
		}
	}
	for _, n := range []int{0, 1, 5, 300, len(canonical) / 2, len(canonical)} {
		for name, r := range readers(canonical, n) {
			if _, err := Verify(t.Context(), r, Limits{}, nil); !errors.Is(err, errBroken) {
				t.Errorf("verify, %s after %d bytes: %v", name, n, err)
			}
		}
		for name, r := range readers(canonical, n) {
			if _, err := Canonicalize(t.Context(), io.Discard, r, Options{}); !errors.Is(err, errBroken) {
				t.Errorf("canonicalize, %s after %d bytes: %v", name, n, err)
			}
		}
		for name, r := range readers(foreign, n) {
			if _, err := Canonicalize(t.Context(), io.Discard, r, Options{}); !errors.Is(err, errBroken) {
				t.Errorf("canonicalize a tar, %s after %d bytes: %v", name, n, err)
			}
		}
	}
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"half": iotest.HalfReader, "one byte": iotest.OneByteReader, "data with error": iotest.DataErrReader,
	} {
		got, err := Verify(t.Context(), wrap(bytes.NewReader(canonical)), Limits{}, nil)
		if err != nil || got != want {
			t.Errorf("verify, %s: %+v, %v", name, got, err)
		}
		got, err = Canonicalize(t.Context(), io.Discard, wrap(bytes.NewReader(foreign)), Options{})
		if err != nil || got != want {
			t.Errorf("canonicalize, %s: %+v, %v", name, got, err)
		}
	}
}

// brokenWriter takes some bytes and then nothing more.
type brokenWriter struct{ room int }

func (w *brokenWriter) Write(p []byte) (int, error) {
	if w.room -= len(p); w.room < 0 {
		return 0, errBroken
	}
	return len(p), nil
}

func TestErrorsOfTheWriterComeBackAndNothingStaysBehind(t *testing.T) {
	before := runtime.NumGoroutine()
	items := append(imageTree(), item{name: "larger", mode: 0o644, content: noise(8 * chunkSize)})
	root, foreign := items.build(t), items.tar(t, tar.FormatGNU)
	_, summary, err := pack(t, root, "", Limits{})
	must(t, err)
	for _, room := range []int64{0, 9, 10, chunkSize, 3 * chunkSize, summary.Size - 8, summary.Size - 1} {
		if _, err := Pack(t.Context(), &brokenWriter{int(room)}, root, "", Limits{}); !errors.Is(err, errBroken) {
			t.Errorf("pack, writer of %d bytes: %v", room, err)
		}
		w := &brokenWriter{int(room)}
		if _, err := Canonicalize(t.Context(), w, bytes.NewReader(foreign), Options{}); !errors.Is(err, errBroken) {
			t.Errorf("canonicalize, writer of %d bytes: %v", room, err)
		}
	}
	waitFor(t, func() bool { return runtime.NumGoroutine() <= before })
}

func TestNoScratchFolder(t *testing.T) {
	opts := Options{Scratch: filepath.Join(t.TempDir(), "gone")}
	_, err := Canonicalize(t.Context(), io.Discard, bytes.NewReader(make([]byte, endSize)), opts)
	if !errors.Is(err, os.ErrNotExist) || errors.Is(err, ErrNotTar) {
		t.Errorf("%v", err)
	}
}

func TestCancelledContext(t *testing.T) {
	items := imageTree()
	root, foreign := items.build(t), items.tar(t, tar.FormatGNU)
	canonical, _, err := canonicalize(t, foreign, Options{})
	must(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errBroken)
	_, packErr := Pack(ctx, io.Discard, root, "", Limits{})
	_, foreignErr := Canonicalize(ctx, io.Discard, bytes.NewReader(foreign), Options{})
	_, verifyErr := Verify(ctx, bytes.NewReader(canonical), Limits{}, nil)
	// Half-way, from inside.
	ctx, cancel = context.WithCancelCause(t.Context())
	visit := func(e Entry, _ io.Reader) error {
		if e.Name == "large" {
			cancel(errBroken)
		}
		return nil
	}
	_, midErr := Canonicalize(ctx, io.Discard, bytes.NewReader(foreign), Options{Visit: visit})
	for name, err := range map[string]error{"pack": packErr, "canonicalize": foreignErr, "verify": verifyErr, "half-way": midErr} {
		if !errors.Is(err, context.Canceled) || errors.Is(err, ErrNotTar) || errors.Is(err, ErrNotCanonical) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
