// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package toc

import (
	"bytes"
	"compress/flate"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rukpak.io/apiserver/pkg/tarball"
)

var update = flag.Bool("update", false, "write the golden index anew")

// small has every kind of entry, and names of every kind.
var small = []file{
	{name: "a/", content: ""}, {name: "a/z", content: "z"}, {name: "a.b", content: "after a and what is in it"},
	{name: "caf\xe9", content: "latin-1"}, {name: "empty/"}, {name: "link", link: "a/z"}, {name: "nothing"},
	{name: "deep/er/file", content: strings.Repeat("text\n", 500)}, {name: strings.Repeat("long/", 30) + "name", content: "x"},
}

// many is enough for nodes above the leaves.
func many(n int) []file {
	var files []file
	for i := range n {
		files = append(files, file{name: fmt.Sprintf("dir-%02d/sub-%d/file-%05d.yaml", i%40, i%7, i), content: fmt.Sprint("content ", i)})
	}
	return files
}

// large is some MiB of which not all compresses.
func large() []file {
	noise := make([]byte, 700<<10)
	// Never an error.
	_, _ = rand.NewChaCha8([32]byte{1}).Read(noise)
	return []file{
		{name: "a", content: strings.Repeat("a line of text\n", 100<<10)}, {name: "b", content: string(noise)}, {name: "c", content: "tiny"},
		{name: "d/e", content: string(noise[:300<<10])}, {name: "f", content: strings.Repeat("another line\n", 70<<10)},
	}
}

func TestEveryEntryIsFound(t *testing.T) {
	for name, files := range map[string][]file{"none": nil, "small": small, "many": many(6000), "large": large()} {
		t.Run(name, func(t *testing.T) {
			m := newMade(t, files...)
			x := m.open(t)
			if x.Entries() != int64(len(m.entries)) || x.TarSize() != int64(len(m.tar)) || x.TarDigest() != m.summary.UncompressedDigest {
				t.Errorf("%d entries, %d bytes of tar, %s", x.Entries(), x.TarSize(), x.TarDigest())
			}
			for _, want := range m.entries {
				got, err := x.Lookup(t.Context(), want.Name)
				if err != nil || *got != want {
					t.Fatalf("%q: %+v, not %+v: %v", want.Name, got, want, err)
				}
				for _, other := range []string{want.Name + "\x01", want.Name + "x", want.Name + "/..", want.Name[:len(want.Name)-1] + "\x01"} {
					if _, err := x.Lookup(t.Context(), other); !errors.Is(err, fs.ErrNotExist) {
						t.Fatalf("%q: %v", other, err)
					}
				}
			}
			if _, err := x.Lookup(t.Context(), "\xff"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("after the last: %v", err)
			}
		})
	}
}

func TestListing(t *testing.T) {
	for name, files := range map[string][]file{"none": nil, "small": small, "many": many(6000)} {
		t.Run(name, func(t *testing.T) {
			m := newMade(t, files...)
			x := m.open(t)
			directories := []string{"", "missing"}
			for _, e := range m.entries {
				if e.Type == tarball.TypeDirectory {
					directories = append(directories, e.Name)
				}
			}
			for _, dir := range directories {
				for _, recursive := range []bool{false, true} {
					var want, got []string
					for _, e := range m.entries {
						rel, below := strings.CutPrefix(e.Name, dir+"/")
						if dir == "" {
							rel, below = e.Name, true
						}
						if below && (recursive || !strings.Contains(rel, "/")) {
							want = append(want, e.Name)
						}
					}
					err := x.List(t.Context(), dir, "", recursive, func(e *Entry) error {
						got = append(got, e.Name)
						return nil
					})
					if err != nil || !slices.Equal(got, want) {
						t.Fatalf("%q, recursive %v: %d entries, not %d: %v", dir, recursive, len(got), len(want), err)
					}
					checkAfter(t, x, dir, recursive, want)
				}
			}
			enough := errors.New("enough")
			if err := x.List(t.Context(), "", "", true, func(*Entry) error { return enough }); len(files) > 0 && err != enough {
				t.Errorf("got %v", err)
			}
		})
	}
}

// checkAfter checks lists of a directory that begin behind a name, with what all of the list is.
func checkAfter(t *testing.T, x *Index, dir string, recursive bool, all []string) {
	t.Helper()
	prefix := dir + "/"
	if dir == "" {
		prefix = ""
	}
	names := []string{"a", "a.", "a/", "a/0", "n", "zz", "/", "\xff"}
	for _, i := range []int{0, 1, len(all) / 3, len(all) / 2, len(all) - 2, len(all) - 1} {
		if i >= 0 && i < len(all) {
			name := strings.TrimPrefix(all[i], prefix)
			names = append(names, name, name+"/", name+"/x", name+"x", name[:len(name)-1])
		}
	}
	for _, after := range names {
		var want, got []string
		for _, name := range all {
			if less(prefix+after, name) {
				want = append(want, name)
			}
		}
		if after == "" {
			want = all
		}
		err := x.List(t.Context(), dir, after, recursive, func(e *Entry) error {
			got = append(got, e.Name)
			return nil
		})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q, recursive %v, after %q: %d entries, not %d: %v", dir, recursive, after, len(got), len(want), err)
		}
	}
}

// To find one path, or the names in a directory of few, takes little of the index.
func TestLookupReadsLittle(t *testing.T) {
	m := newMade(t, many(30_000)...)
	if len(m.index) < 1<<20 {
		t.Fatalf("the index has only %d bytes", len(m.index))
	}
	m.opened = 0
	x := m.open(t)
	if _, err := x.Lookup(t.Context(), m.entries[12345].Name); err != nil {
		t.Fatal(err)
	}
	if m.opened > headLength+5*fullPart {
		t.Errorf("a look-up read %d bytes of %d", m.opened, len(m.index))
	}
	m.opened = 0
	count := 0
	if err := m.open(t).List(t.Context(), "", "", false, func(*Entry) error { count++; return nil }); err != nil || count != 40 {
		t.Errorf("%d directories: %v", count, err)
	}
	if m.opened > int64(len(m.index)) {
		t.Errorf("a listing of 40 directories read %d bytes of %d", m.opened, len(m.index))
	}
}

// variants are archives of the same tar, deflated in other ways.
func variants(t *testing.T, m *made) map[string]*made {
	t.Helper()
	all := map[string]*made{"ours": m}
	for name, flush := range map[string]int{"one stream": len(m.tar), "flushed": 300_000} {
		out := bytes.NewBufferString("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff")
		w, err := flate.NewWriter(out, 6)
		must(t, err)
		for part := range slices.Chunk(m.tar, flush) {
			_, err := w.Write(part)
			must(t, err)
			must(t, w.Flush())
		}
		must(t, w.Close())
		trailer := binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(m.tar))
		out.Write(binary.LittleEndian.AppendUint32(trailer, uint32(len(m.tar))))
		other := &made{archive: out.Bytes()}
		other.make(t)
		all[name] = other
	}
	return all
}

func TestReadingAnyRange(t *testing.T) {
	for name, m := range variants(t, newMade(t, large()...)) {
		t.Run(name, func(t *testing.T) {
			x := m.open(t)
			size := int64(len(m.tar))
			for _, e := range m.entries {
				got, err := m.read(t, x, e.Offset, e.Size)
				if err != nil || e.Type == tarball.TypeFile && sha256.Sum256(got) != e.Digest {
					t.Errorf("%q: %d bytes: %v", e.Name, len(got), err)
				}
			}
			ranges := [][2]int64{{0, size}, {size - 1, 1}, {size, 0}, {blockSize - 1, 2}, {stripeSize, 1}, {stripeSize - 1, 2}, {0, 0}, {0, stripeSize}, {3 * blockSize, blockSize}}
			r := rand.New(rand.NewPCG(1, 2))
			for range 100 {
				from := r.Int64N(size)
				ranges = append(ranges, [2]int64{from, r.Int64N(min(size-from, 100_000) + 1)})
			}
			for _, part := range ranges {
				got, err := m.read(t, x, part[0], part[1])
				if err != nil || !bytes.Equal(got, m.tar[part[0]:part[0]+part[1]]) {
					t.Errorf("%d bytes at %d: %d bytes: %v", part[1], part[0], len(got), err)
				}
			}
			for _, part := range [][2]int64{{-1, 1}, {0, size + 1}, {size, 1}, {1, -1}, {1 << 62, 1 << 62}} {
				if _, err := m.read(t, x, part[0], part[1]); !errors.Is(err, ErrDamaged) {
					t.Errorf("%d bytes at %d: %v", part[1], part[0], err)
				}
			}
		})
	}
}

// What is read of the archive for a small file is a piece of it.
func TestReadingOpensLittle(t *testing.T) {
	m := newMade(t, large()...)
	x := m.open(t)
	e, err := x.Lookup(t.Context(), "c")
	must(t, err)
	var asked int64
	r, err := x.Read(t.Context(), func(ctx context.Context, offset, length int64) (io.ReadCloser, error) {
		asked = length
		return opener(m.archive)(ctx, offset, length)
	}, e.Offset, e.Size)
	must(t, err)
	if got, err := io.ReadAll(r); string(got) != "tiny" || err != nil {
		t.Errorf("%q: %v", got, err)
	}
	if asked < 0 || asked > 2*stripeSize {
		t.Errorf("%d bytes of %d were asked for", asked, len(m.archive))
	}
	must(t, r.Close())
	if _, err := r.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("read after close: %v", err)
	}
}

func TestSeek(t *testing.T) {
	m := newMade(t, large()...)
	r, err := m.open(t).Read(t.Context(), opener(m.archive), 1000, 2_000_000)
	must(t, err)
	defer r.Close()
	want := bytes.NewReader(m.tar[1000:2_001_000])
	for _, to := range []struct {
		offset int64
		whence int
	}{{0, io.SeekEnd}, {0, io.SeekStart}, {1_500_000, io.SeekStart}, {-700_000, io.SeekCurrent}, {-10, io.SeekEnd}, {5, io.SeekEnd}, {0, io.SeekStart}} {
		got, err := r.Seek(to.offset, to.whence)
		expect, err2 := want.Seek(to.offset, to.whence)
		if got != expect || err != nil || err2 != nil {
			t.Fatalf("%+v: at %d, not %d: %v, %v", to, got, expect, err, err2)
		}
		a, b := make([]byte, 1000), make([]byte, 1000)
		n, errA := io.ReadFull(r, a)
		m, errB := io.ReadFull(want, b)
		if n != m || !bytes.Equal(a, b) || errA != errB {
			t.Fatalf("%+v: %d bytes, not %d: %v, %v", to, n, m, errA, errB)
		}
	}
	if _, err := r.Seek(-1, io.SeekStart); err == nil {
		t.Error("before the start")
	}
}

// Wherever a byte of the archive changes, what is read is right or an error.
func TestDamagedArchive(t *testing.T) {
	m := newMade(t, large()...)
	x := m.open(t)
	r := rand.New(rand.NewPCG(3, 4))
	damaged, found := *m, 0
	for range 60 {
		damaged.archive = slices.Clone(m.archive)
		at := len("gzip head!") + r.IntN(len(m.archive)-20)
		damaged.archive[at] ^= byte(1 + r.IntN(255))
		got, err := damaged.read(t, x, 0, int64(len(m.tar)))
		if !bytes.Equal(got, m.tar[:len(got)]) {
			t.Fatalf("byte %d: wrong bytes", at)
		}
		if err == nil && len(got) != len(m.tar) {
			t.Fatalf("byte %d: too few bytes", at)
		}
		if err != nil {
			found++
			if !errors.Is(err, ErrMismatch) {
				t.Errorf("byte %d: %v", at, err)
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d of 60 were found", found)
	}
	damaged.archive = m.archive[:len(m.archive)/2]
	if _, err := damaged.read(t, x, 0, int64(len(m.tar))); !errors.Is(err, ErrMismatch) {
		t.Errorf("cut short: %v", err)
	}
}

// use reads all that there is to read by an index, and fails the test if it gives other than the archive has.
func (m *made) use(t testing.TB, x *Index) (errs []error) {
	t.Helper()
	keep := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	var names []string
	keep(x.List(t.Context(), "", "", true, func(e *Entry) error {
		names = append(names, e.Name)
		return nil
	}))
	keep(x.List(t.Context(), "", "", false, func(*Entry) error { return nil }))
	for _, e := range m.entries {
		got, err := x.Resolve(t.Context(), e.Name)
		keep(err)
		if err == nil && !x.unchecked && e.Type != tarball.TypeSymlink && *got != e {
			t.Errorf("%q is %+v", e.Name, got)
		}
		if err != nil || got.Type != tarball.TypeFile {
			continue
		}
		content, err := m.read(t, x, got.Offset, min(got.Size, 1<<20))
		keep(err)
		if !x.unchecked && !bytes.Equal(content, m.tar[got.Offset:got.Offset+int64(len(content))]) {
			t.Errorf("%q has other content", e.Name)
		}
	}
	return errs
}

// Wherever a byte of the index changes, what it says is right or an error that is ErrDamaged.
func TestDamagedIndex(t *testing.T) {
	m := newMade(t, small...)
	index := m.index
	for at := range index {
		m.index = slices.Clone(index)
		m.index[at] ^= 0x55
		x, err := Open(t.Context(), m.summary.Digest, m.openIndex)
		errs := []error{err}
		if err == nil {
			errs = m.use(t, x)
		}
		for _, err := range errs {
			if err != nil && !errors.Is(err, ErrDamaged) {
				t.Errorf("byte %d: %v", at, err)
			}
		}
		if len(errs) == 0 {
			t.Errorf("byte %d: not found", at)
		}
	}
	for size := range index {
		m.index = index[:size]
		if x, err := Open(t.Context(), m.summary.Digest, m.openIndex); err == nil && len(m.use(t, x)) == 0 {
			t.Errorf("%d bytes of %d: not found", size, len(index))
		}
	}
	m.index = index
	if _, err := Open(t.Context(), "sha256:"+strings.Repeat("0", 64), m.openIndex); !errors.Is(err, ErrDamaged) {
		t.Errorf("that of another archive: %v", err)
	}
}

func TestResolve(t *testing.T) {
	m := newMade(t,
		file{name: "a/b/c", content: "c"}, file{name: "a/up", link: "../top"}, file{name: "top", content: "t"}, file{name: "dir", link: "a/./b//"},
		file{name: "a/b/far", link: "../../dir/c"}, file{name: "self", link: "self"}, file{name: "x", link: "y"}, file{name: "y", link: "x"},
		file{name: "gone", link: "nowhere/at/all"}, file{name: "grow", link: "grow/grow"}, file{name: "through", link: "top/more"}, file{name: "here", link: "."})
	x := m.open(t)
	for path, want := range map[string]struct {
		name string
		err  error
		says string
	}{
		"":            {name: ""},
		"top":         {name: "top"},
		"a/up":        {name: "top"},
		"dir":         {name: "a/b"},
		"dir/c":       {name: "a/b/c"},
		"dir/far":     {name: "a/b/c"},
		"here":        {name: ""},
		"here/here/a": {name: "a"},
		"self":        {err: ErrLoop, says: `"self"`},
		"x":           {err: ErrLoop},
		"grow":        {err: ErrLoop},
		"gone":        {err: fs.ErrNotExist, says: `"nowhere"`},
		"through":     {err: ErrNotDirectory, says: `"top"`},
		"top/c":       {err: ErrNotDirectory, says: `"top"`},
		"dir/d":       {err: fs.ErrNotExist, says: `"a/b/d"`},
		"A":           {err: fs.ErrNotExist, says: `"A"`},
	} {
		got, err := x.Resolve(t.Context(), path)
		if !errors.Is(err, want.err) || err == nil && got.Name != want.name {
			t.Errorf("%q: %+v, %v", path, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), want.says) {
			t.Errorf("%q: says %v", path, err)
		}
	}
}

func TestGoldenIndex(t *testing.T) {
	m := newMade(t, small...)
	path := filepath.Join("testdata", "small.toc")
	if *update {
		must(t, os.MkdirAll("testdata", 0o755))
		must(t, os.WriteFile(path, m.index, 0o644))
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if !bytes.Equal(m.index, want) {
		t.Errorf("what is written is not %s any more: it needs another version", path)
	}
}

func TestBuilderThatCannotWrite(t *testing.T) {
	b, err := NewBuilder(t.TempDir())
	must(t, err)
	must(t, b.Close())
	summary, err := tarball.VerifyIndexed(t.Context(), bytes.NewReader(newMade(t, many(3000)...).archive), tarball.Options{Index: b})
	if err != nil {
		t.Errorf("the archive was refused: %v", err)
	}
	if _, _, err := b.Finish(summary); err == nil {
		t.Error("no error")
	}
	if _, err := NewBuilder(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("no folder, and no error")
	}
}

func TestCancelled(t *testing.T) {
	m := newMade(t, large()...)
	ctx, cancel := context.WithCancel(t.Context())
	x, err := Open(ctx, m.summary.Digest, m.openIndex)
	must(t, err)
	r, err := x.Read(ctx, opener(m.archive), 0, int64(len(m.tar)))
	must(t, err)
	_, err = io.CopyN(io.Discard, r, 100)
	must(t, err)
	cancel()
	if _, err := io.Copy(io.Discard, r); !errors.Is(err, context.Canceled) || !errors.Is(r.Err(), context.Canceled) {
		t.Errorf("got %v", err)
	}
	must(t, r.Close())
}

func TestDigestString(t *testing.T) {
	e := Entry{Entry: tarball.Entry{Type: tarball.TypeFile}, Digest: sha256.Sum256(nil)}
	if want := "sha256:" + hex.EncodeToString(e.Digest[:]); e.DigestString() != want {
		t.Errorf("%s, not %s", e.DigestString(), want)
	}
	e.Type = tarball.TypeSymlink
	if e.DigestString() != "" {
		t.Errorf("of a link: %s", e.DigestString())
	}
}

// FuzzIndex reads from an index of any bytes, with its checksums and without.
func FuzzIndex(f *testing.F) {
	m := newMade(f, small...)
	f.Add(m.index, true)
	f.Add(m.index, false)
	f.Add(m.index[:headerSize], true)
	f.Fuzz(func(t *testing.T, index []byte, unchecked bool) {
		if len(index) >= headerSize && unchecked {
			h := index[:headerSize:headerSize]
			copy(h, m.index[:80])
			index = append(binary.LittleEndian.AppendUint32(h[:headerSize-checksumSize], crc32.Checksum(h[:headerSize-checksumSize], castagnoli)), index[headerSize:]...)
		}
		x, err := Open(t.Context(), m.summary.Digest, opener(index))
		if err != nil {
			return
		}
		x.unchecked = unchecked
		m.use(t, x)
	})
}

// FuzzResolve follows any path in an archive that is full of links: it ends, and in an entry or an error that says why.
func FuzzResolve(f *testing.F) {
	m := newMade(f,
		file{name: "a/b/c", content: "c"}, file{name: "a/up", link: "../d"}, file{name: "d", link: "a/b"}, file{name: "e", link: "e/e"},
		file{name: "x", link: "y"}, file{name: "y", link: "./x/"}, file{name: "gone", link: "no/where"})
	for _, path := range []string{"", "a/b/c", "a/up/c", "d/c/c", "e/e/e", "x", "y/", "a//b", "../a", "gone/x", "\xff"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		e, err := m.open(t).Resolve(t.Context(), path)
		switch {
		case err == nil && e.Type == tarball.TypeSymlink:
			t.Errorf("%q leads to the link %q", path, e.Name)
		case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrLoop) && !errors.Is(err, ErrNotDirectory):
			t.Errorf("%q: %v", path, err)
		}
	})
}
