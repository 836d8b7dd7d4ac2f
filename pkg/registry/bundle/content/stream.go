// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"rukpak.io/apiserver/pkg/bytesize"
	"rukpak.io/apiserver/pkg/content"
)

// StallTimeout is how long a peer may send nothing.
const StallTimeout = 60 * time.Second

// blob reads stored bytes. It opens them where it is read, so that a HEAD opens nothing and a range opens
// just that; it gives net/http what it needs to serve ranges.
type blob struct {
	ctx       context.Context
	storeName string
	store     content.Store
	digest    string
	size      int64

	// net/http reads several ranges in a goroutine of its own, which can outlive the request.
	mu     sync.Mutex
	at     int64
	open   io.ReadCloser
	closed bool
}

var errClosed = errors.New("content is closed")

var _ io.ReadSeeker = &blob{}

func (b *blob) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, errClosed
	}
	if b.open == nil {
		open, err := b.store.Open(b.ctx, b.digest, b.at, -1)
		if err != nil {
			return 0, err
		}
		b.open = open
	}
	n, err := b.open.Read(p)
	b.at += int64(n)
	return n, err
}

func (b *blob) Seek(offset int64, whence int) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch whence {
	case io.SeekCurrent:
		offset += b.at
	case io.SeekEnd:
		offset += b.size
	}
	if offset < 0 {
		return 0, errors.New("seek before the start of content")
	}
	if offset != b.at {
		b.release()
		b.at = offset
	}
	return offset, nil
}

// close ends the reading for good.
func (b *blob) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.release()
}

func (b *blob) release() {
	if b.open != nil {
		// Nothing was written, so nothing is lost by an error here.
		_ = b.open.Close()
		b.open = nil
	}
}

// SlowestUpload is what a line of 128 kbit/s carries, in bytes a second. A place that is held by less is held from everybody else.
const SlowestUpload = 16 << 10

// SlowestWanted is what a body has to bring, in bytes a second, while somebody waits for its place: a few that are slower would
// hold all places for hours.
const SlowestWanted = 1 << 20

// ErrTooSlow is the error of a body that comes more slowly than its pace allows.
var ErrTooSlow = errors.New("it comes too slowly")

// ErrTooSlowForOthers is an ErrTooSlow: that of a body which brings less than SlowestWanted while somebody waits for its place.
var ErrTooSlowForOthers = fmt.Errorf("%w: others wait for its place, and meanwhile it has to come at %s/s", ErrTooSlow, bytesize.String(SlowestWanted))

// Pace is how a body comes, and how it has to. The first StallTimeout is not counted.
type Pace struct {
	Began time.Time
	// Bytes is how many have come.
	Bytes int64
	// Slowest is the least rate, in bytes a second, that a body has to keep. 0 means any.
	Slowest int64
	// Wanted reports whether somebody waits for the place that the body holds. Nil means never.
	Wanted func() bool

	waited time.Duration // for the peer: what the server itself took is not meant
}

// Check returns ErrTooSlow or ErrTooSlowForOthers where the body is to be given up.
func (p *Pace) Check() error {
	switch {
	case slower(time.Since(p.Began), p.Bytes, p.Slowest):
		return ErrTooSlow
	case p.Wanted != nil && slower(p.waited, p.Bytes, SlowestWanted) && p.Wanted():
		return ErrTooSlowForOthers
	}
	return nil
}

// Take reads from the body.
func (p *Pace) Take(body io.Reader, b []byte) (int, error) {
	asked := time.Now()
	n, err := body.Read(b)
	p.waited += time.Since(asked)
	p.Bytes += int64(n)
	return n, err
}

func slower(took time.Duration, read, rate int64) bool {
	took -= StallTimeout
	return took > 0 && read < int64(took.Seconds()*float64(rate))
}

// pacedReader reads a request's body, each read of which has to make progress in time. It remembers the error
// that the body ended with, so that it can be told from those of whoever works on the bytes.
type pacedReader struct {
	Pace
	body    io.Reader
	control *http.ResponseController
	err     error
}

func newPacedReader(w http.ResponseWriter, body io.Reader) *pacedReader {
	return &pacedReader{body: body, control: http.NewResponseController(w), Pace: Pace{Began: time.Now()}}
}

func (p *pacedReader) Read(b []byte) (int, error) {
	if err := p.Check(); err != nil {
		p.err = err
		return 0, err
	}
	_ = p.control.SetReadDeadline(time.Now().Add(StallTimeout))
	n, err := p.Take(p.body, b)
	switch {
	case err == io.EOF:
		// net/http reads on to see whether the client goes away, and would take a deadline for that.
		_ = p.control.SetReadDeadline(time.Time{})
	case err != nil:
		p.err = err
	}
	return n, err
}

// begun reports whether the body was asked for any of its bytes.
func (p *pacedReader) begun() bool { return p.Bytes > 0 || p.err != nil }

// roomInterval is after how many bytes a body asks again whether there is room for more.
const roomInterval = 16 << 20

// roomyReader reads on while there is room for what it reads.
type roomyReader struct {
	from io.Reader
	room func() error
	read int
}

func (r *roomyReader) Read(b []byte) (int, error) {
	if r.read >= roomInterval {
		r.read = 0
		if err := r.room(); err != nil {
			return 0, err
		}
	}
	n, err := r.from.Read(b)
	r.read += n
	return n, err
}

// storeWriter remembers the error of the store.
type storeWriter struct {
	content.Writer
	err error
}

func (s *storeWriter) Write(b []byte) (int, error) {
	n, err := s.Writer.Write(b)
	if err != nil {
		s.err = err
	}
	return n, err
}
