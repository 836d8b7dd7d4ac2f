// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"archive/tar"
	"bytes"
	"io"
	"testing"
)

// fuzzLimits keep an input from taking long.
var fuzzLimits = Limits{CompressedBytes: 1 << 20, Bytes: 4 << 20, Files: 200, Depth: 20}

// readAll is a visitor that looks at everything.
func readAll(_ Entry, content io.Reader) error {
	_, err := io.Copy(io.Discard, content)
	return err
}

func FuzzVerify(f *testing.F) {
	for _, items := range vectors() {
		var b bytes.Buffer
		_, err := Pack(f.Context(), &b, items.build(f), "", Limits{})
		must(f, err)
		f.Add(gunzipped(f, b.Bytes()), false)
		f.Add(b.Bytes(), true)
	}
	// Most fuzzed bytes would fail the checksum of the gzip, so they may also be the tar.
	f.Fuzz(func(t *testing.T, data []byte, raw bool) {
		if !raw {
			data = canonicalGzip(t, data)
		}
		got, err := Verify(t.Context(), bytes.NewReader(data), fuzzLimits, readAll)
		if err != nil {
			return
		}
		again, err := Canonicalize(t.Context(), io.Discard, bytes.NewReader(data), Options{Limits: fuzzLimits})
		if err != nil || again.UncompressedDigest != got.UncompressedDigest || again.Files != got.Files {
			t.Errorf("verified as %+v, canonicalized as %+v: %v", got, again, err)
		}
	})
}

func FuzzCanonicalize(f *testing.F) {
	for _, items := range vectors() {
		for _, format := range []tar.Format{tar.FormatUnknown, tar.FormatPAX, tar.FormatGNU} {
			data := items.tar(f, format)
			f.Add(data, "")
			f.Add(gzipped(f, data), "")
			f.Add(data, "dir")
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, path string) {
		opts := Options{Limits: fuzzLimits, Path: path, Visit: readAll}
		var out bytes.Buffer
		want, err := Canonicalize(t.Context(), &out, bytes.NewReader(data), opts)
		if err != nil {
			return
		}
		got, err := Verify(t.Context(), bytes.NewReader(out.Bytes()), fuzzLimits, nil)
		if err != nil || got != want {
			t.Errorf("verify says %+v, canonicalize %+v: %v", got, want, err)
		}
		var again bytes.Buffer
		got, err = Canonicalize(t.Context(), &again, bytes.NewReader(out.Bytes()), Options{Limits: fuzzLimits})
		if err != nil || got != want || !bytes.Equal(again.Bytes(), out.Bytes()) {
			t.Errorf("the second time %+v, the first %+v: %v", got, want, err)
		}
	})
}
