// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"bytes"
	"errors"
	"io"
)

const (
	// readFactor is how much more than the limits of the canonical archive may
	// be read to make it: foreign headers are larger, and with a path the rest
	// of an image goes by too.
	readFactor = 4
	// maxTrailer bounds the zeros after the end of a foreign tar, in bytes.
	// Archivers fill up their last record with them.
	maxTrailer = 16 << 20
)

var errTrailing = errors.New("there is data after the end of the archive")

// foreign reads the tar bytes of an archive of unknown make. It enforces the
// limits on what is read, and sees whether the archive has an end, which
// archive/tar does not ask for.
type foreign struct {
	src        *source
	compressed bool
	r          io.Reader
	limits     Limits
	size       int64 // tar bytes read
	// trailing counts the zero bytes at the end of what was read since mark.
	trailing int64
}

func (f *foreign) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	f.size += int64(n)
	content := bytes.TrimRight(p[:n], "\x00")
	if len(content) > 0 {
		f.trailing = 0
	}
	f.trailing += int64(n - len(content))
	if limitErr := f.check(); limitErr != nil {
		err = limitErr
	}
	return n, err
}

func (f *foreign) check() error {
	if f.size > spoolLimit(f.limits.Bytes) {
		return exceeds(LimitBytes, spoolLimit(f.limits.Bytes), "")
	}
	if f.compressed {
		return f.limits.checkRatio(f.src.size, f.size)
	}
	return nil
}

// mark says that all that was read up to now belongs to entries, but for the
// padding of the last one, which the tar reader leaves for later.
func (f *foreign) mark() { f.trailing = -padding(f.size) }

// finish reads what follows the end of the archive and checks that it is but
// zeros, and that there was such an end at all.
func (f *foreign) finish() error {
	if f.trailing < blockSize {
		return io.ErrUnexpectedEOF
	}
	buf := make([]byte, 32<<10)
	for total := 0; ; {
		n, err := f.Read(buf)
		total += n
		if total > maxTrailer || len(bytes.TrimRight(buf[:n], "\x00")) > 0 {
			return errTrailing
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
