// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"rukpak.io/apiserver/pkg/nameless"
)

// errScratch is in every error of the scratch file. The archive is not to blame for those.
var errScratch = errors.New("scratch file")

// spool keeps file contents on disk, one after the other, in a file that is gone
// when it is closed, so that nothing stays behind whatever happens to the process.
type spool struct {
	file *os.File
	w    *bufio.Writer
	size int64
	buf  []byte
}

func newSpool(dir string) (*spool, error) {
	file, err := nameless.Create(dir, "tarball-")
	if err != nil {
		return nil, fmt.Errorf("make %w: %w", errScratch, err)
	}
	return &spool{file: file, w: bufio.NewWriterSize(file, 256<<10), buf: make([]byte, 64<<10)}, nil
}

// add appends everything that r yields and returns where it begins and how long
// it is. An error of r comes back as it is.
func (s *spool) add(r io.Reader) (offset, size int64, err error) {
	offset = s.size
	for {
		n, readErr := r.Read(s.buf)
		if _, err := s.w.Write(s.buf[:n]); err != nil {
			return 0, 0, fmt.Errorf("write %w: %w", errScratch, err)
		}
		s.size += int64(n)
		if readErr == io.EOF {
			return offset, s.size - offset, nil
		}
		if readErr != nil {
			return 0, 0, readErr
		}
	}
}

// flush makes everything that was added readable.
func (s *spool) flush() error {
	if err := s.w.Flush(); err != nil {
		return fmt.Errorf("write %w: %w", errScratch, err)
	}
	return nil
}

func (s *spool) open(offset, size int64) *io.SectionReader {
	return io.NewSectionReader(s.file, offset, size)
}

func (s *spool) close() error { return s.file.Close() }
