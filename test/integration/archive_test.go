// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"rukpak.io/apiserver/pkg/tarball"
)

// entry is an entry of an archive. The flag is that of a regular file when it is 0.
type entry struct {
	name, body string
	flag       byte
	link       string
}

// tarOf makes an archive, of whatever kind of entries.
func tarOf(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: 0o644, Size: int64(len(e.body)), Typeflag: e.flag, Linkname: e.link}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func gzipOf(t *testing.T, raw []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(raw); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// canonical makes the archive that is served for these entries.
func canonical(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	if _, err := tarball.Canonicalize(t.Context(), &out, bytes.NewReader(tarOf(t, entries...)), tarball.Options{Scratch: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// configMap is a manifest.
func configMap(name string) entry {
	return entry{name: "manifests/" + name + ".yaml", body: "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: " + name + "\n"}
}

// noise is a file that cannot be compressed, always the same for a seed.
func noise(name string, seed uint64, size int) entry {
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	body := make([]byte, size)
	// Never an error.
	_, _ = rand.NewChaCha8(key).Read(body)
	return entry{name: name, body: string(body)}
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// field is a digest as header fields write it (RFC 9530).
func field(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}
