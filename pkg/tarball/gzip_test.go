// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"bytes"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
)

// noise returns n bytes that do not compress.
func noise(n int) string {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return string(b)
}

// waitFor waits until a condition holds that other goroutines bring about.
func waitFor(t *testing.T, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("it does not come about")
		}
	}
}

func compress(t *testing.T, data []byte, piece int) []byte {
	t.Helper()
	var b bytes.Buffer
	z := newGzipWriter(&b, sha256.New(), nil)
	for len(data) > 0 {
		n := min(piece, len(data))
		_, err := z.Write(data[:n])
		must(t, err)
		data = data[n:]
	}
	must(t, z.close(&b))
	return b.Bytes()
}

func TestGzipDependsOnTheBytesAlone(t *testing.T) {
	for _, size := range []int{0, 1, 511, chunkSize - 1, chunkSize, chunkSize + 1, 7*chunkSize + 13} {
		data := bytes.Repeat([]byte("name: value\n"), size/12+1)[:size]
		copy(data[size/2:], noise(size/4))
		want := compress(t, data, len(data)+1)
		if got := gunzipped(t, want); !bytes.Equal(got, data) {
			t.Errorf("%d bytes: others read %d bytes", size, len(got))
		}
		for _, cpus := range []int{1, 2, 16} {
			before := runtime.GOMAXPROCS(cpus)
			for _, piece := range []int{blockSize, 100_003} {
				if !bytes.Equal(compress(t, data, piece), want) {
					t.Errorf("%d bytes on %d CPUs in pieces of %d: other bytes", size, cpus, piece)
				}
			}
			runtime.GOMAXPROCS(before)
		}
	}
}

func TestGzipReadFromEqualsWrite(t *testing.T) {
	data := []byte(noise(3*chunkSize + 5))
	var b bytes.Buffer
	z := newGzipWriter(&b, sha256.New(), nil)
	n, _, err := z.readFrom(bytes.NewReader(data), int64(len(data)))
	must(t, err)
	must(t, z.close(&b))
	if n != int64(len(data)) || !bytes.Equal(b.Bytes(), compress(t, data, 1000)) {
		t.Errorf("%d bytes read, other bytes written", n)
	}
	z = newGzipWriter(io.Discard, sha256.New(), nil)
	n, fromReader, err := z.readFrom(bytes.NewReader(data), int64(len(data))+1)
	if n != int64(len(data)) || !fromReader || err != io.ErrUnexpectedEOF {
		t.Errorf("%d %v %v", n, fromReader, err)
	}
	z.abort()
}
