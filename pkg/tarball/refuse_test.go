// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
)

// entries writes a tar of bare headers; regular files get content of their size.
func entries(t testing.TB, headers ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		must(t, w.WriteHeader(h))
		if h.Typeflag == tar.TypeReg {
			_, err := w.Write(make([]byte, h.Size))
			must(t, err)
		}
	}
	must(t, w.Close())
	return b.Bytes()
}

func file(name string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}
}

func folder(name string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}
}

func link(name, target string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}
}

func hardLink(name, target string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: 0o644}
}

func device(name string, flag byte) *tar.Header {
	return &tar.Header{Typeflag: flag, Name: name, Mode: 0o644, Devmajor: 1, Devminor: 3}
}

// refused checks that err refuses the entry, by name, for the reason.
func refused(t *testing.T, err error, entry, reason string) {
	t.Helper()
	entryErr, ok := errors.AsType[*EntryError](err)
	if !ok {
		t.Fatalf("%v is no *EntryError", err)
	}
	if entryErr.Entry != entry || !strings.Contains(entryErr.Reason, reason) {
		t.Errorf("entry %q is refused because %q, want %q because %q", entryErr.Entry, entryErr.Reason, entry, reason)
	}
	if !strings.Contains(err.Error(), strconv.Quote(entry)) {
		t.Errorf("%q does not name %q", err, entry)
	}
}

func TestCanonicalizeRefuses(t *testing.T) {
	ok := file("ok")
	for name, c := range map[string]struct {
		headers []*tar.Header
		entry   string
		reason  string
	}{
		"climbing name":             {[]*tar.Header{ok, file("../evil")}, "../evil", `".."`},
		"climb inside a name":       {[]*tar.Header{ok, file("a/../evil")}, "a/../evil", `".."`},
		"climb at the end":          {[]*tar.Header{ok, folder("a/../")}, "a/../", `".."`},
		"absolute name":             {[]*tar.Header{ok, file("/etc/passwd")}, "/etc/passwd", "absolute"},
		"file in place of the root": {[]*tar.Header{ok, link("./", "ok")}, "./", "root"},
		"file named like a folder":  {[]*tar.Header{ok, link("a/", "ok")}, "a/", "name of a directory"},
		"long component":            {[]*tar.Header{ok, file(strings.Repeat("c", 256))}, strings.Repeat("c", 256), "255"},

		"same file twice":           {[]*tar.Header{ok, file("a"), file("a")}, "a", "duplicate"},
		"same file, other spelling": {[]*tar.Header{ok, file("a/b"), file("./a//b")}, "a/b", "duplicate"},
		"same folder twice":         {[]*tar.Header{folder("d"), ok, folder("d")}, "d", "duplicate"},
		"folder after file":         {[]*tar.Header{file("a"), ok, folder("a")}, "a", "duplicate"},
		"file after folder":         {[]*tar.Header{folder("a"), ok, file("a")}, "a", "duplicate"},
		"file after implied folder": {[]*tar.Header{file("a/b"), ok, file("a")}, "a", "duplicate"},
		"link after implied folder": {[]*tar.Header{file("a/b"), link("a", "ok")}, "a", "duplicate"},
		"below a file":              {[]*tar.Header{file("a"), file("a/b")}, "a/b", `below "a"`},
		"below a link":              {[]*tar.Header{folder("d"), link("a", "d"), file("a/b/c")}, "a/b/c", `below "a"`},
		"below a hard link":         {[]*tar.Header{ok, hardLink("a", "ok"), file("a/b")}, "a/b", `below "a"`},

		"absolute link":                {[]*tar.Header{ok, link("a", "/etc/passwd")}, "a", "absolute target \"/etc/passwd\""},
		"escaping link":                {[]*tar.Header{ok, link("a", "../evil")}, "a", "leaves the root"},
		"escaping link further down":   {[]*tar.Header{ok, link("a/b/c", "../../../evil")}, "a/b/c", "leaves the root"},
		"escaping link, hidden by dot": {[]*tar.Header{ok, link("a", "./.././x")}, "a", "leaves the root"},
		"climb after descent":          {[]*tar.Header{ok, link("a/up", ".."), link("a/b", "up/../x")}, "a/b", `".." after a name`},
		"link to nothing":              {[]*tar.Header{ok, link("a", "")}, "a", "no target"},

		"hard link to nothing":       {[]*tar.Header{ok, hardLink("a", "gone")}, "a", `"gone", which is not in the archive`},
		"absolute hard link outside": {[]*tar.Header{ok, hardLink("a", "/etc/passwd")}, "a", "not in the archive"},
		"climbing hard link":         {[]*tar.Header{ok, hardLink("a", "../ok")}, "a", "cannot be in the archive"},
		"hard link to the root":      {[]*tar.Header{ok, hardLink("a", "./")}, "a", "cannot be in the archive"},
		"hard link to a folder":      {[]*tar.Header{folder("d"), hardLink("a", "d")}, "a", "is a directory"},
		"hard link to itself":        {[]*tar.Header{ok, hardLink("a", "a")}, "a", "back to itself"},
		"hard links in a ring":       {[]*tar.Header{hardLink("a", "b"), hardLink("b", "c"), hardLink("c", "a")}, "a", "back to itself"},
		"hard link to a link that would leave": {
			[]*tar.Header{folder("d"), link("d/up", "../ok"), ok, hardLink("top", "d/up")}, "top", "leaves the root",
		},

		"character device": {[]*tar.Header{ok, device("dev/null", tar.TypeChar)}, "dev/null", "a character device"},
		"block device":     {[]*tar.Header{ok, device("dev/sda", tar.TypeBlock)}, "dev/sda", "a block device"},
		"FIFO":             {[]*tar.Header{ok, device("pipe", tar.TypeFifo)}, "pipe", "a FIFO"},
		"unknown type":     {[]*tar.Header{ok, device("odd", 'Z')}, "odd", "unsupported type 'Z'"},
		"global path": {
			[]*tar.Header{ok, {Typeflag: tar.TypeXGlobalHeader, Name: "global", PAXRecords: map[string]string{"path": "b"}}},
			"b", `"path"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			out, _, err := canonicalize(t, entries(t, c.headers...), Options{})
			refused(t, err, c.entry, c.reason)
			if len(out) > 0 {
				t.Errorf("%d bytes were written", len(out))
			}
		})
	}
}

func TestCanonicalizeRefusesAnEmptyName(t *testing.T) {
	data := entries(t, file("x"))
	data[0] = 0
	sum := 0
	copy(data[148:156], "        ")
	for _, c := range data[:blockSize] {
		sum += int(c)
	}
	octal(data[148:155], int64(sum))
	_, _, err := canonicalize(t, data, Options{})
	refused(t, err, "", "empty")
}

// block is a header of any kind, canonical in all else.
func block(e Entry, flag byte) []byte {
	name := e.Name
	if flag == byte(TypeDirectory) && !strings.HasSuffix(name, "/") {
		name += "/"
	}
	return appendBlock(nil, name, flag, e.Mode, e.Size, e.Linkname)
}

func canonicalFile(name string) Entry { return Entry{Name: name, Type: TypeFile, Mode: 0o644} }

func TestVerifyRefuses(t *testing.T) {
	header := func(es ...Entry) []byte {
		var b []byte
		for _, e := range es {
			b = appendHeader(b, e)
		}
		return b
	}
	patched := func(e Entry, f field, value string) []byte {
		b := header(e)
		copy(f.of(b), value)
		sum := fieldChecksum.of(b)
		copy(sum, "        ")
		total := 0
		for _, c := range b[:blockSize] {
			total += int(c)
		}
		octal(sum[:7], int64(total))
		return b
	}
	records := func(text string) []byte {
		b := appendBlock(nil, paxName, typePAX, 0o644, int64(len(text)), "")
		b = append(append(b, text...), make([]byte, padding(int64(len(text))))...)
		return append(b, header(canonicalFile("short"))...)
	}
	d := Entry{Name: "d", Type: TypeDirectory, Mode: 0o755}
	a := canonicalFile("a")
	badPadding := append(header(Entry{Name: "a", Type: TypeFile, Mode: 0o644, Size: 3}), "abc"...)
	badPadding = append(append(badPadding, make([]byte, 508)...), 'x')
	for name, c := range map[string]struct {
		tar       []byte
		entry     string
		reason    string
		canonical bool // the entry could be in an archive, were it written otherwise
	}{
		"character device":      {block(a, tar.TypeChar), "a", "a character device", false},
		"block device":          {block(a, tar.TypeBlock), "a", "a block device", false},
		"FIFO":                  {block(a, tar.TypeFifo), "a", "a FIFO", false},
		"hard link":             {block(Entry{Name: "b", Linkname: "a"}, tar.TypeLink), "b", "a hard link", false},
		"GNU long name":         {block(a, 'L'), "a", "unsupported type", false},
		"climbing name":         {block(canonicalFile("../evil"), '0'), "../evil", `".."`, false},
		"absolute name":         {block(canonicalFile("/evil"), '0'), "/evil", "absolute", false},
		"empty name":            {block(canonicalFile(""), '0'), "", "empty", false},
		"dot prefix":            {block(canonicalFile("./a"), '0'), "./a", "not clean", false},
		"file named as folder":  {block(canonicalFile("a/"), '0'), "a/", "not clean", false},
		"NUL in a name":         {records("12 path=a\x00b\n"), "a\x00b", "NUL", false},
		"absolute link":         {header(Entry{Name: "l", Type: TypeSymlink, Mode: 0o777, Linkname: "/x"}), "l", "absolute", false},
		"escaping link":         {header(Entry{Name: "l", Type: TypeSymlink, Mode: 0o777, Linkname: "../x"}), "l", "leaves the root", false},
		"long component":        {header(canonicalFile(strings.Repeat("c", 256))), strings.Repeat("c", 256), "255", false},
		"duplicate":             {header(a, a), "a", "duplicate", false},
		"folder after file":     {header(a, Entry{Name: "a", Type: TypeDirectory, Mode: 0o755}), "a", "duplicate", false},
		"below a file":          {header(a, canonicalFile("a/b")), "a/b", `below "a"`, false},
		"below a link":          {header(Entry{Name: "l", Type: TypeSymlink, Mode: 0o777, Linkname: "x"}, canonicalFile("l/b")), "l/b", `below "l"`, false},
		"wrong order":           {header(canonicalFile("b"), a), "a", "order", true},
		"wrong order of folder": {header(canonicalFile("e"), canonicalFile("d/x")), "d/x", "order", true},
		"no folder entry":       {header(canonicalFile("d/x")), "d/x", `"d" has no entry`, true},
		"folder left and back":  {header(d, canonicalFile("d/x"), canonicalFile("e"), canonicalFile("d/y")), "d/y", "order", true},
		"mode of a link":        {header(Entry{Name: "l", Type: TypeSymlink, Mode: 0o644, Linkname: "x"}), "l", "mode 0644", true},
		"setuid":                {patched(a, fieldMode, "0004644\x00"), "a", "canonical form", true},
		"owner":                 {patched(a, fieldUID, "0001000\x00"), "a", "canonical form", true},
		"group":                 {patched(a, fieldGID, "0001000\x00"), "a", "canonical form", true},
		"time":                  {patched(a, fieldMtime, "00000000001\x00"), "a", "canonical form", true},
		"GNU magic":             {patched(a, fieldMagic, "ustar  \x00"), "a", "canonical form", true},
		"old regular file":      {patched(a, fieldType, "\x00"), "a", "unsupported type", false},
		"user name":             {patched(a, field{265, 297}, "root"), "a", "canonical form", true},
		"prefix":                {patched(a, field{345, 500}, "p"), "a", "canonical form", true},
		"spaces in a number":    {patched(a, fieldSize, "          0\x00"), "a", "mode or size", true},
		"binary number":         {patched(a, fieldSize, "\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), "a", "mode or size", true},
		"bytes after a name":    {patched(a, field{50, 51}, "x"), "a", "canonical form", true},
		"wrong checksum":        {append([]byte("b"), header(a)[1:]...), "b", "canonical form", true},
		"link target of a file": {patched(a, fieldLinkname, "x"), "a", "link target", true},
		"size of a folder":      {patched(d, fieldSize, "00000000001\x00"), "d", "has content", true},
		"needless record":       {records("10 path=a\n"), "a", "canonical form", true},
		"unknown record":        {records("11 mtime=0\n"), "short", "extended header", true},
		"broken record":         {records("99 path=a\n"), "short", "extended header", true},
		"negative size":         {records("11 size=-1\n"), "short", "extended header", true},
		"huge records":          {block(Entry{Name: paxName, Mode: 0o644, Size: maxRecordsSize + 1}, typePAX), paxName, "larger than", true},
		"padding":               {badPadding, "a", "padding", true},
	} {
		t.Run(name, func(t *testing.T) {
			data := canonicalGzip(t, append(c.tar, zeros[:]...))
			_, err := verify(t, data, Limits{})
			refused(t, err, c.entry, c.reason)
			if errors.Is(err, ErrNotCanonical) != c.canonical {
				t.Errorf("%v: ErrNotCanonical is %v", err, !c.canonical)
			}
		})
	}
}

func TestVerifyRefusesOtherFrames(t *testing.T) {
	good, want, err := canonicalize(t, vectors()["plain"].tar(t, tar.FormatUSTAR), Options{})
	must(t, err)
	plain := gunzipped(t, good)
	with := func(i int, b byte) []byte {
		data := bytes.Clone(good)
		data[i] = b
		return data
	}
	for name, data := range map[string][]byte{
		"no gzip":             plain,
		"other gzip header":   gzipped(t, plain),
		"gzip time":           with(4, 1),
		"gzip extra flags":    with(8, 2),
		"gzip system":         with(9, 3),
		"wrong sum":           with(len(good)-8, ^good[len(good)-8]),
		"wrong length":        with(len(good)-4, ^good[len(good)-4]),
		"a byte more":         append(bytes.Clone(good), 0),
		"a second member":     append(bytes.Clone(good), good...),
		"an empty member":     append(bytes.Clone(good), canonicalGzip(t, nil)...),
		"no end blocks":       canonicalGzip(t, plain[:len(plain)-endSize]),
		"one end block":       canonicalGzip(t, plain[:len(plain)-blockSize]),
		"three end blocks":    canonicalGzip(t, append(bytes.Clone(plain), zeros[:blockSize]...)),
		"data after the end":  canonicalGzip(t, append(bytes.Clone(plain), 'x')),
		"other second block":  canonicalGzip(t, append(bytes.Clone(plain[:len(plain)-blockSize]), plain[:blockSize]...)),
		"an empty gzip":       canonicalGzip(t, nil),
		"text":                []byte("hello"),
		"a gzip of something": canonicalGzip(t, bytes.Repeat([]byte("text "), 1000)),
	} {
		if _, err := verify(t, data, Limits{}); !errors.Is(err, ErrNotCanonical) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// How hard the gzip was compressed is not a matter of the format.
	got, err := verify(t, canonicalGzip(t, plain), Limits{})
	if err != nil || got.UncompressedDigest != want.UncompressedDigest {
		t.Errorf("another compressor: %+v, %v", got, err)
	}
}

func TestVisitorsErrorNamesTheEntry(t *testing.T) {
	errVisit := errors.New("no manifest")
	data := vectors()["plain"].tar(t, tar.FormatUSTAR)
	good, _, err := canonicalize(t, data, Options{})
	must(t, err)
	visit := func(e Entry, _ io.Reader) error {
		if e.Name == "manifests/config.yaml" {
			return errVisit
		}
		return nil
	}
	_, _, err = canonicalize(t, data, Options{Visit: visit})
	_, verifyErr := Verify(t.Context(), bytes.NewReader(good), Limits{}, visit)
	for _, err := range []error{err, verifyErr} {
		refused(t, err, "manifests/config.yaml", "no manifest")
		if !errors.Is(err, errVisit) {
			t.Errorf("%v is not the visitor's", err)
		}
	}
}
