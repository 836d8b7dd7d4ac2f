// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"hash/maphash"

	"rukpak.io/apiserver/pkg/content"
)

// sealingWriter makes the sums of a blob while that is written, so that its first reader need not wait for the digest: the
// store has compared that with the bytes when they were committed.
type sealingWriter struct {
	content.Writer
	seals *seals
	sums  []uint64
	chunk []byte // the beginning of the next chunk
}

func newSealingWriter(w content.Writer, s *seals) *sealingWriter {
	return &sealingWriter{Writer: w, seals: s, chunk: make([]byte, 0, chunkSize)}
}

func (w *sealingWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	for p := p[:n]; len(p) > 0; {
		if len(w.chunk) == 0 && len(p) >= chunkSize {
			w.sums = append(w.sums, maphash.Bytes(w.seals.seed, p[:chunkSize]))
			p = p[chunkSize:]
			continue
		}
		more := min(chunkSize-len(w.chunk), len(p))
		w.chunk = append(w.chunk, p[:more]...)
		p = p[more:]
		if len(w.chunk) == chunkSize {
			w.sums = append(w.sums, maphash.Bytes(w.seals.seed, w.chunk))
			w.chunk = w.chunk[:0]
		}
	}
	return n, err
}

// Commit commits the blob, and remembers its sums.
func (w *sealingWriter) Commit(ctx context.Context, digest string) error {
	if err := w.Writer.Commit(ctx, digest); err != nil {
		return err
	}
	if len(w.chunk) > 0 {
		w.sums = append(w.sums, maphash.Bytes(w.seals.seed, w.chunk))
	}
	w.seals.keep(digest, w.sums)
	return nil
}
