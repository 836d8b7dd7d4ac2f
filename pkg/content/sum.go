// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
)

// Sum counts bytes, and finds out their digest.
type Sum struct {
	hash hash.Hash
	size int64
}

// NewSum returns the Sum of no bytes.
func NewSum() *Sum { return &Sum{hash: sha256.New()} }

// Write takes the next bytes. It takes everything.
func (s *Sum) Write(p []byte) (int, error) {
	s.size += int64(len(p))
	return s.hash.Write(p)
}

// Size is the number of bytes so far.
func (s *Sum) Size() int64 { return s.size }

// Digest is that of the bytes so far.
func (s *Sum) Digest() string { return Algorithm + ":" + hex.EncodeToString(s.hash.Sum(nil)) }

// Check returns ErrDigestMismatch unless the bytes have a digest.
func (s *Sum) Check(digest string) error {
	if have := s.Digest(); have != digest {
		return fmt.Errorf("%w: %d bytes are %s, not %s", ErrDigestMismatch, s.size, have, digest)
	}
	return nil
}

// Exactly reads r, which has to end after size bytes. Fewer are io.ErrUnexpectedEOF, more an error as well.
func Exactly(r io.Reader, size int64) io.Reader { return &exactly{r: r, rest: size} }

type exactly struct {
	r    io.Reader
	rest int64
}

func (e *exactly) Read(p []byte) (int, error) {
	if e.rest == 0 {
		p = p[:min(1, len(p))]
	}
	n, err := e.r.Read(p[:min(int64(len(p)), max(1, e.rest))])
	e.rest -= int64(n)
	switch {
	case e.rest < 0:
		return 0, errors.New("there are more bytes than were announced")
	case errors.Is(err, io.EOF) && e.rest > 0:
		return n, fmt.Errorf("%d bytes are missing: %w", e.rest, io.ErrUnexpectedEOF)
	default:
		return n, err
	}
}
