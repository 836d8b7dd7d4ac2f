// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestLimits(t *testing.T) {
	items := tree{
		{name: "a/b/c", mode: 0o644, content: strings.Repeat("abc", 1000)},
		{name: "d", mode: 0o644, content: "d"},
		{name: "e", mode: 0o777, symlink: "d"},
	}
	root, foreign := items.build(t), items.tar(t, tar.FormatPAX)
	canonical, all, err := pack(t, root, "", Limits{})
	must(t, err)
	exact := Limits{CompressedBytes: all.Size, Bytes: all.UncompressedSize, Files: all.Files, PathLength: 5, Depth: 3}
	for name, c := range map[string]struct {
		lower func(l *Limits)
		limit string
		most  int64
		entry string
	}{
		"none":             {func(*Limits) {}, "", 0, ""},
		"compressed bytes": {func(l *Limits) { l.CompressedBytes-- }, LimitCompressedBytes, all.Size - 1, "?"},
		"bytes":            {func(l *Limits) { l.Bytes-- }, LimitBytes, all.UncompressedSize - 1, "e"},
		"bytes at once":    {func(l *Limits) { l.Bytes = 4096 }, LimitBytes, 4096, "a/b/c"},
		"files":            {func(l *Limits) { l.Files-- }, LimitFiles, 2, "?"},
		"path length":      {func(l *Limits) { l.PathLength-- }, LimitPathLength, 4, "a/b/c"},
		"depth":            {func(l *Limits) { l.Depth-- }, LimitDepth, 2, "a/b/c"},
	} {
		limits := exact
		c.lower(&limits)
		_, _, packErr := pack(t, root, "", limits)
		_, _, foreignErr := canonicalize(t, foreign, Options{Limits: limits})
		_, verifyErr := verify(t, canonical, limits)
		for op, err := range map[string]error{"pack": packErr, "canonicalize": foreignErr, "verify": verifyErr} {
			if c.limit == "" {
				must(t, err)
				continue
			}
			limitErr, ok := errors.AsType[*LimitError](err)
			if !ok || limitErr.Limit != c.limit || limitErr.Max != c.most || (c.entry != "?" && limitErr.Entry != c.entry) {
				t.Errorf("%s, %s: %#v %v", name, op, limitErr, err)
			}
			if limitErr.Entry != "" && !strings.Contains(err.Error(), strconv.Quote(limitErr.Entry)) {
				t.Errorf("%s, %s: %q does not say where", name, op, err)
			}
		}
	}
}

func TestLimitOnDirectories(t *testing.T) {
	var headers []*tar.Header
	var canonical []byte
	root := t.TempDir()
	for i := range 1003 {
		name := string([]byte{'a' + byte(i/676), 'a' + byte(i/26%26), 'a' + byte(i%26)})
		headers = append(headers, folder(name))
		canonical = appendHeader(canonical, Entry{Name: name, Type: TypeDirectory, Mode: 0o755})
		must(t, os.Mkdir(filepath.Join(root, name), 0o755))
	}
	limits := Limits{Files: 1}
	_, _, packErr := pack(t, root, "", limits)
	_, _, foreignErr := canonicalize(t, entries(t, headers...), Options{Limits: limits})
	_, verifyErr := verify(t, canonicalGzip(t, append(canonical, zeros[:]...)), limits)
	for op, err := range map[string]error{"pack": packErr, "canonicalize": foreignErr, "verify": verifyErr} {
		limitErr, ok := errors.AsType[*LimitError](err)
		if !ok || limitErr.Limit != LimitDirectories || limitErr.Max != 1002 || limitErr.Entry == "" {
			t.Errorf("%s: %v", op, err)
		}
	}
}

func TestLimitOnMetadata(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range 5000 {
		h := link(strings.Repeat("d/", 3)+string(rune('a'+i%26))+strings.Repeat("n", i/26), strings.Repeat("t", 4000))
		must(t, w.WriteHeader(h))
	}
	must(t, w.Close())
	_, _, err := canonicalize(t, b.Bytes(), Options{Limits: Limits{Files: 5000}})
	if limitErr, ok := errors.AsType[*LimitError](err); !ok || limitErr.Limit != LimitMetadata || limitErr.Entry == "" {
		t.Errorf("%v", err)
	}
}

func TestLimitOnRatio(t *testing.T) {
	root := t.TempDir()
	f, err := os.Create(filepath.Join(root, "zeros"))
	must(t, err)
	must(t, f.Truncate(RatioFloor))
	must(t, f.Close())
	_, _, packErr := pack(t, root, "", Limits{})
	canonical, summary, err := pack(t, root, "", Limits{Ratio: 100000})
	must(t, err)
	_, verifyErr := verify(t, canonical, Limits{})
	_, _, foreignErr := canonicalize(t, canonical, Options{})
	plain := gunzipped(t, canonical)
	_, _, plainErr := canonicalize(t, plain, Options{})
	for op, err := range map[string]error{"pack": packErr, "canonicalize": foreignErr, "a plain tar": plainErr, "verify": verifyErr} {
		if limitErr, ok := errors.AsType[*LimitError](err); !ok || limitErr.Limit != LimitRatio || limitErr.Max != DefaultRatio {
			t.Errorf("%s: %v", op, err)
		}
	}
	got, err := verify(t, canonical, Limits{Ratio: 100000})
	if err != nil || got != summary {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestHardLinkBombIsRefusedBeforeItIsWritten(t *testing.T) {
	big := file("big")
	big.Size = 1 << 20
	headers := []*tar.Header{big}
	for i := range 100 {
		headers = append(headers, hardLink("copy"+string(rune('a'+i/10))+string(rune('a'+i%10)), "big"))
	}
	out, _, err := canonicalize(t, entries(t, headers...), Options{Limits: Limits{Bytes: 10 << 20}})
	if limitErr, ok := errors.AsType[*LimitError](err); !ok || limitErr.Limit != LimitBytes || !strings.HasPrefix(limitErr.Entry, "copy") {
		t.Errorf("%v", err)
	}
	if len(out) != 0 {
		t.Errorf("%d bytes were written", len(out))
	}
}
