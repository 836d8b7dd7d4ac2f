// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestSum(t *testing.T) {
	s := NewSum()
	const nothing = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	if s.Size() != 0 || s.Digest() != nothing || s.Check(nothing) != nil {
		t.Errorf("of nothing: %d bytes, %s, %v", s.Size(), s.Digest(), s.Check(nothing))
	}
	if n, err := io.Copy(s, iotest.OneByteReader(strings.NewReader("abc"))); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	const abc = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	if s.Size() != 3 || s.Check(abc) != nil {
		t.Errorf("of abc: %d bytes, %v", s.Size(), s.Check(abc))
	}
	if err := s.Check(nothing); !errors.Is(err, ErrDigestMismatch) {
		t.Errorf("of abc, as another: %v", err)
	}
}

func TestExactly(t *testing.T) {
	for _, text := range []string{"", "a", "abc"} {
		for _, size := range []int64{0, 1, 2, 3, 4} {
			for _, r := range []io.Reader{strings.NewReader(text), iotest.OneByteReader(strings.NewReader(text)), iotest.DataErrReader(strings.NewReader(text))} {
				got, err := io.ReadAll(Exactly(r, size))
				switch have := int64(len(text)); {
				case have == size && (err != nil || string(got) != text):
					t.Errorf("%q of %d bytes: %q, %v", text, size, got, err)
				case have < size && !errors.Is(err, io.ErrUnexpectedEOF):
					t.Errorf("%q in place of %d bytes: %v", text, size, err)
				case have > size && (err == nil || errors.Is(err, io.ErrUnexpectedEOF)):
					t.Errorf("%q in place of %d bytes: %v", text, size, err)
				}
			}
		}
	}
}
