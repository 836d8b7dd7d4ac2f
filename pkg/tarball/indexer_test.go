// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/flate"
)

// recorder keeps what an index is told.
type recorder struct {
	entries     []recorded
	tar         bytes.Buffer
	checkpoints []Checkpoint
}

type recorded struct {
	Entry
	offset int64
	digest [sha256.Size]byte
}

func (r *recorder) Entry(e Entry, offset int64, digest [sha256.Size]byte) {
	r.entries = append(r.entries, recorded{e, offset, digest})
}

func (r *recorder) Tar(p []byte) { r.tar.Write(p) }

func (r *recorder) Checkpoint(c Checkpoint) {
	c.Window = slices.Clone(c.Window)
	r.checkpoints = append(r.checkpoints, c)
}

// check fails unless the tar can be read from each checkpoint to its end.
func (r *recorder) check(t *testing.T, archive []byte) {
	t.Helper()
	for _, e := range r.entries {
		if e.Type == TypeFile && sha256.Sum256(r.tar.Bytes()[e.offset:e.offset+e.Size]) != e.digest {
			t.Errorf("the content of %s, %d bytes, is not at %d", e.Name, e.Size, e.offset)
		}
	}
	for i, c := range r.checkpoints {
		from := flate.NewReaderOpts(bytes.NewReader(archive[c.Gzip:]), flate.WithResumeFrom(flate.InflateCheckpoint{BitOffset: c.Bits, Window: c.Window}))
		got, err := io.ReadAll(from)
		if err != nil || !bytes.Equal(got, r.tar.Bytes()[c.Tar:]) {
			t.Errorf("checkpoint %d at %d of the tar: %d bytes that are not the %d there: %v", i, c.Tar, len(got), r.tar.Len()-int(c.Tar), err)
		}
	}
}

// mixed is a canonical archive of a few MiB, some of which compresses and some of which does not.
func mixed(t testing.TB) []byte {
	t.Helper()
	r := rand.NewChaCha8([32]byte{})
	noise := make([]byte, 900<<10)
	// Never an error.
	_, _ = r.Read(noise)
	items := tree{{name: "empty", mode: 0o644}, {name: "link", symlink: "text/0"}, {name: "text", mode: 0o755, dir: true}}
	for i := range 5 {
		name := string(rune('0' + i))
		items = append(items, item{name: "text/" + name, mode: 0o644, content: strings.Repeat("line "+name+" of a text\n", 30<<10)})
		items = append(items, item{name: "zip" + name, mode: 0o600, content: string(noise[:i*200<<10])})
	}
	out, _, err := pack(t, items.build(t), "", Limits{})
	must(t, err)
	return out
}

// recompressed is an archive whose tar was deflated by somebody else.
func recompressed(t testing.TB, archive []byte, level, flush int) []byte {
	t.Helper()
	plain, out := gunzipped(t, archive), bytes.NewBufferString(gzipHeader)
	w, err := flate.NewWriter(out, level)
	must(t, err)
	for rest := plain; len(rest) > 0; {
		n := min(flush, len(rest))
		_, err := w.Write(rest[:n])
		must(t, err)
		if rest = rest[n:]; len(rest) > 0 {
			must(t, w.Flush())
		}
	}
	must(t, w.Close())
	trailer := binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(plain))
	out.Write(binary.LittleEndian.AppendUint32(trailer, uint32(len(plain))))
	return out.Bytes()
}

func TestCheckpoints(t *testing.T) {
	ours := mixed(t)
	pieces := len(gunzipped(t, ours))/chunkSize + 1
	for name, test := range map[string]struct {
		archive []byte
		alone   bool
		least   int
	}{
		"ours":                        {ours, true, pieces},
		"one stream":                  {recompressed(t, ours, flate.DefaultCompression, 1<<30), false, pieces / 3},
		"flushed, but not alone":      {recompressed(t, ours, flate.BestSpeed, chunkSize), false, pieces / 3},
		"stored":                      {recompressed(t, ours, flate.NoCompression, 1<<30), true, pieces},
		"flushed at odd places":       {recompressed(t, ours, 6, 77_777), false, pieces / 3},
		"Huffman codes alone":         {recompressed(t, ours, flate.HuffmanOnly, 1<<30), false, pieces / 3},
		"smaller than a window, ours": {vector(t, "plain"), true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var r recorder
			summary, err := VerifyIndexed(t.Context(), bytes.NewReader(test.archive), Options{Index: &r})
			must(t, err)
			if without, err := verify(t, test.archive, Limits{}); err != nil || without != summary {
				t.Errorf("with an index it is %+v, without %+v: %v", summary, without, err)
			}
			if int64(r.tar.Len()) != summary.UncompressedSize || len(r.checkpoints) < test.least {
				t.Errorf("%d bytes of %d, %d checkpoints, want %d", r.tar.Len(), summary.UncompressedSize, len(r.checkpoints), test.least)
			}
			for _, c := range r.checkpoints {
				if test.alone && len(c.Window) > 0 {
					t.Errorf("the one at %d has a window", c.Tar)
				}
			}
			r.check(t, test.archive)
		})
	}
}

func vector(t testing.TB, name string) []byte {
	t.Helper()
	out, _, err := pack(t, vectors()[name].build(t), "", Limits{})
	must(t, err)
	return out
}

// What is written tells the same as what is read, and a visitor that reads some of a file changes nothing.
func TestIndexersAreToldTheSame(t *testing.T) {
	archive := mixed(t)
	var written, read, visited recorder
	var out bytes.Buffer
	_, err := Canonicalize(t.Context(), &out, bytes.NewReader(archive), Options{Scratch: t.TempDir(), Index: &written})
	must(t, err)
	if !bytes.Equal(out.Bytes(), archive) {
		t.Fatal("the archive is another one")
	}
	_, err = VerifyIndexed(t.Context(), bytes.NewReader(archive), Options{Index: &read})
	must(t, err)
	half := func(e Entry, content io.Reader) error {
		_, err := io.CopyN(io.Discard, content, e.Size/2)
		return err
	}
	_, err = VerifyIndexed(t.Context(), bytes.NewReader(archive), Options{Visit: half, Index: &visited})
	must(t, err)
	if len(read.entries) != 13 {
		t.Errorf("entries are %+v", read.entries)
	}
	for name, r := range map[string]*recorder{"written": &written, "visited": &visited} {
		if !slices.Equal(r.entries, read.entries) || !bytes.Equal(r.tar.Bytes(), read.tar.Bytes()) {
			t.Errorf("%s: %+v in place of %+v", name, r.entries, read.entries)
		}
		if len(r.checkpoints) != len(read.checkpoints) {
			t.Errorf("%s: %d checkpoints in place of %d", name, len(r.checkpoints), len(read.checkpoints))
		}
	}
	written.check(t, archive)
}

// An archive of nothing but tiny blocks would cost far more to read than it cost to send.
func TestTinyBlocksAreRefused(t *testing.T) {
	archive := vector(t, "plain")
	bomb := bytes.NewBufferString(gzipHeader)
	for range 10 * spareBlocks {
		bomb.WriteString("\x00\x00\x00\xff\xff")
	}
	bomb.Write(archive[len(gzipHeader):])
	_, err := verify(t, bomb.Bytes(), Limits{})
	limit, ok := errors.AsType[*LimitError](err)
	if !ok || limit.Limit != LimitBlocks {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(limit.Error(), "blocks") {
		t.Errorf("it says %q", limit)
	}
}

func TestWrongTrailerIsDamage(t *testing.T) {
	archive := vector(t, "plain")
	for at := 1; at <= gzipTrailer; at++ {
		damaged := slices.Clone(archive)
		damaged[len(damaged)-at] ^= 1
		if _, err := verify(t, damaged, Limits{}); !errors.Is(err, ErrNotCanonical) {
			t.Errorf("byte %d from the end: %v", at, err)
		}
		if _, err := gzip.NewReader(bytes.NewReader(damaged)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := verify(t, archive[:len(archive)-3], Limits{}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut short: %v", err)
	}
}

// FuzzCheckpoints deflates an archive at any level, with any distance between flushes.
func FuzzCheckpoints(f *testing.F) {
	ours := mixed(f)
	f.Add(1, 70_001)
	f.Add(6, chunkSize)
	f.Add(9, 1_000_003)
	f.Add(-2, 33_000)
	f.Fuzz(func(t *testing.T, level, flush int) {
		if level < -2 || level > 9 || flush < 1<<10 || flush > 8<<20 {
			t.Skip()
		}
		archive := recompressed(t, ours, level, flush)
		var r recorder
		if _, err := VerifyIndexed(t.Context(), bytes.NewReader(archive), Options{Index: &r}); err != nil {
			t.Fatal(err)
		}
		r.check(t, archive)
		for i, c := range r.checkpoints[1:] {
			if c.Tar-r.checkpoints[i].Tar < aloneGap {
				t.Errorf("checkpoints at %d and %d", r.checkpoints[i].Tar, c.Tar)
			}
		}
	})
}
