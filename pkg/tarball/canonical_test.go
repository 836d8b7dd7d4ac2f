// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"archive/tar"
	"bytes"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden vectors anew")

func pack(t testing.TB, root, path string, limits Limits) ([]byte, Summary, error) {
	t.Helper()
	var b bytes.Buffer
	summary, err := Pack(t.Context(), &b, root, path, limits)
	return b.Bytes(), summary, err
}

func TestSameTreeSameBytes(t *testing.T) {
	items := imageTree()
	fromDisk, want, err := pack(t, items.build(t), "", Limits{})
	must(t, err)
	got, err := verify(t, fromDisk, Limits{})
	must(t, err)
	if got != want {
		t.Errorf("verify says %+v, pack says %+v", got, want)
	}
	// The folders that imageTree does not mention have the mode of implied ones.
	for _, format := range []tar.Format{tar.FormatPAX, tar.FormatGNU} {
		for by := range 3 {
			input := shuffled(items, by*7).tar(t, format)
			for name, data := range map[string][]byte{"tar": input, "tar.gz": gzipped(t, input)} {
				out, got, err := canonicalize(t, data, Options{})
				if err != nil {
					t.Fatalf("%v, %s, order %d: %v", format, name, by, err)
				}
				if got != want || !bytes.Equal(out, fromDisk) {
					t.Errorf("%v, %s, order %d: %+v differs from %+v", format, name, by, got, want)
				}
			}
		}
	}
	again, got, err := canonicalize(t, fromDisk, Options{})
	must(t, err)
	if got != want || !bytes.Equal(again, fromDisk) {
		t.Errorf("the canonical form of a canonical archive is another one: %+v, %+v", got, want)
	}
}

func TestEntriesAreInCanonicalOrderAndForm(t *testing.T) {
	out, _, err := canonicalize(t, shuffled(imageTree(), 3).tar(t, tar.FormatGNU), Options{})
	must(t, err)
	lines := read(t, out)
	for _, want := range []string{
		`5 0750 a/  ""`, `0 0644 a/b  "b"`, `0 0644 a/z  "z"`, `0 0644 a.b  "sorts after the folder a"`,
		`0 0755 usr/bin/alias  "#!/bin/sh\n"`, `0 0755 usr/bin/tool  "#!/bin/sh\n"`,
		`0 0644 links/hard  "z"`, `2 0777 links/dangling ./nowhere// ""`, `5 0777 tmp/  ""`, `5 0700 empty/  ""`,
		`0 0000 no-mode  "mode 0000"`, "0 0644 caf\xe9  \"latin-1\"", `5 0755 usr/bin/  ""`,
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("no entry %s", want)
		}
	}
	if i, j := slices.Index(lines, `0 0644 a/z  "z"`), slices.Index(lines, `0 0644 a.b  "sorts after the folder a"`); i+1 != j {
		t.Errorf("a.b is entry %d and a/z is entry %d", j, i)
	}
}

func TestGoldenVectors(t *testing.T) {
	document, err := os.ReadFile("../../docs/format.md")
	must(t, err)
	for name, items := range vectors() {
		t.Run(name, func(t *testing.T) {
			packed, fromDisk, err := pack(t, items.build(t), "", Limits{})
			must(t, err)
			_, fromTar, err := canonicalize(t, shuffled(items, 1).tar(t, tar.FormatUnknown), Options{})
			must(t, err)
			if fromDisk != fromTar {
				t.Errorf("pack gives %+v, canonicalize %+v", fromDisk, fromTar)
			}
			for file, got := range map[string][]byte{name + ".tar": gunzipped(t, packed), name + ".tar.gz": packed} {
				path := filepath.Join("testdata", Format, file)
				if *update {
					must(t, os.MkdirAll(filepath.Dir(path), 0o755))
					must(t, os.WriteFile(path, got, 0o644))
				}
				want, err := os.ReadFile(path)
				must(t, err)
				if !bytes.Equal(got, want) {
					t.Errorf("%s is no longer what is written", path)
				}
			}
			if got, err := verify(t, packed, Limits{}); err != nil || got != fromDisk {
				t.Errorf("verify says %+v, pack %+v: %v", got, fromDisk, err)
			}
			if !strings.Contains(string(document), fromDisk.UncompressedDigest) {
				t.Errorf("docs/format.md does not hold %s for %s", fromDisk.UncompressedDigest, name)
			}
		})
	}
}

func TestForeignFormsOfTheSameTree(t *testing.T) {
	plain := tree{
		{name: "dir", mode: 0o755, dir: true},
		{name: "dir/file", mode: 0o644, content: "content"},
	}
	_, want, err := canonicalize(t, plain.tar(t, tar.FormatUSTAR), Options{})
	must(t, err)
	renamed := func(names ...string) []byte {
		items := slices.Clone(plain)
		for i, name := range names {
			items[i].name = name
		}
		return items.tar(t, tar.FormatUSTAR)
	}
	withGlobal := func() []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "pax_global_header", PAXRecords: map[string]string{"comment": "a commit"}}))
		must(t, w.Flush())
		return append(b.Bytes(), plain.tar(t, tar.FormatUSTAR)...)
	}
	withRoot := tree{{name: ".", mode: 0o700, dir: true}}
	halves := plain.tar(t, tar.FormatUSTAR)
	for name, data := range map[string][]byte{
		"dot prefix":       renamed("./dir", "./dir/file"),
		"inner dots":       renamed("dir/.", "dir//./file"),
		"root entry":       append(withRoot.tar(t, tar.FormatUSTAR)[:blockSize], halves...),
		"no folder":        plain[1:].tar(t, tar.FormatUSTAR),
		"global comment":   withGlobal(),
		"record padding":   append(bytes.Clone(halves), make([]byte, 9*blockSize)...),
		"one zero block":   halves[:len(halves)-blockSize],
		"two gzip members": append(gzipped(t, halves[:700]), gzipped(t, halves[700:])...),
	} {
		_, got, err := canonicalize(t, data, Options{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

func TestSubtreeBecomesTheRoot(t *testing.T) {
	items := tree{
		{name: "dev/null", mode: 0o666, content: "stands for a device"},
		{name: "etc/mtab", mode: 0o777, symlink: "../proc/mounts"},
		{name: "shared/original", mode: 0o640, content: "linked from the subtree"},
		{name: "opt/app/manifests/one.yaml", mode: 0o644, content: "one"},
		{name: "opt/app/manifests/two.yaml", mode: 0o640, link: "shared/original"},
		{name: "opt/app/manifests/same", mode: 0o777, symlink: "./one.yaml"},
		{name: "opt/app/manifests-not", mode: 0o644, content: "beside it"},
	}
	headers := items.headers(tar.FormatPAX)
	headers[0].Typeflag, headers[0].Size = tar.TypeChar, 0
	headers[1].Linkname = "/proc/mounts" // refused inside the subtree, no matter outside
	headers[4].Linkname = "/shared/original"
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i, h := range headers {
		must(t, w.WriteHeader(h))
		if h.Typeflag == tar.TypeReg {
			_, err := io.WriteString(w, items[i].content)
			must(t, err)
		}
	}
	must(t, w.Close())
	root := items.build(t)
	for _, path := range []string{"opt/app/manifests", "/opt/app/manifests/", "./opt//app/manifests"} {
		packed, want, err := pack(t, root, path, Limits{})
		must(t, err)
		out, got, err := canonicalize(t, b.Bytes(), Options{Path: path})
		must(t, err)
		if got != want || !bytes.Equal(out, packed) {
			t.Errorf("path %q: pack says %+v, canonicalize %+v", path, want, got)
		}
		lines := read(t, out)
		if !slices.Equal(lines, []string{`0 0644 one.yaml  "one"`, `2 0777 same ./one.yaml ""`, `0 0640 two.yaml  "linked from the subtree"`}) {
			t.Errorf("path %q: entries %q", path, lines)
		}
	}
}

func TestSparseFilesBecomeWhole(t *testing.T) {
	gnuTar, err := exec.LookPath("tar")
	if err != nil {
		t.Skip("no tar program")
	}
	root := t.TempDir()
	file, err := os.Create(filepath.Join(root, "sparse"))
	must(t, err)
	_, err = file.WriteAt([]byte("an island"), 1<<20)
	must(t, err)
	must(t, file.Truncate(3<<20))
	must(t, file.Close())
	must(t, os.Chmod(filepath.Join(root, "sparse"), 0o644))
	_, want, err := pack(t, root, "", Limits{})
	must(t, err)
	for _, args := range [][]string{{"--format=gnu"}, {"--format=pax"}, {"--format=pax", "--sparse-version=0.1"}} {
		data, err := exec.Command(gnuTar, append(args, "-S", "-C", root, "-c", ".")...).Output()
		must(t, err)
		if len(data) > 1<<20 {
			t.Skip("this tar or file system makes no sparse archives")
		}
		_, got, err := canonicalize(t, data, Options{})
		must(t, err)
		if got != want {
			t.Errorf("%v: %+v, want %+v", args, got, want)
		}
	}
}

func TestOtherProgramsExtractTheSameTree(t *testing.T) {
	gnuTar, err := exec.LookPath("tar")
	if err != nil {
		t.Skip("no tar program")
	}
	// Whoever is not root cannot pack what it may not read again.
	items := slices.DeleteFunc(imageTree(), func(it item) bool { return it.mode.Perm()&0o400 == 0 })
	// A file whose name, cut to the field of a ustar header, looks like a folder's.
	items = append(items, item{name: strings.Repeat("w", 99) + "/" + strings.Repeat("w", 99), mode: 0o644, content: "cut"})
	packed, want, err := pack(t, items.build(t), "", Limits{})
	must(t, err)
	root := t.TempDir()
	cmd := exec.Command(gnuTar, "-C", root, "-xzpf", "-")
	cmd.Stdin = bytes.NewReader(packed)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_, got, err := pack(t, root, "", Limits{})
	must(t, err)
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestVisitorSeesEveryEntryInOrder(t *testing.T) {
	items := vectors()["links"]
	var seen []string
	visit := func(e Entry, content io.Reader) error {
		var head [4]byte // less than the content: the rest is read over
		n, err := io.ReadFull(content, head[:])
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return err
		}
		seen = append(seen, string(rune(e.Type))+" "+e.Name+" "+string(head[:n]))
		return nil
	}
	want := []string{"0 copy one ", "5 dir ", "0 dir/file one ", "2 dir/up ", "2 target "}
	out, summary, err := canonicalize(t, items.tar(t, tar.FormatUnknown), Options{Visit: visit})
	must(t, err)
	if !slices.Equal(seen, want) {
		t.Errorf("canonicalize shows %q", seen)
	}
	seen = nil
	got, err := Verify(t.Context(), bytes.NewReader(out), Limits{}, visit)
	must(t, err)
	if !slices.Equal(seen, want) || got != summary {
		t.Errorf("verify shows %q and says %+v", seen, got)
	}
}
