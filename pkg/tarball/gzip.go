// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"runtime"
	"sync/atomic"

	"github.com/klauspost/compress/flate"
)

const (
	// gzipHeader is the header of the one gzip member (RFC 1952): no flags, no
	// time, no extra flags, and an unknown operating system. It does not tell
	// the level, so that another one can be chosen later.
	gzipHeader = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"

	// chunkSize is how many bytes of the tar are compressed at a time, each
	// chunk on its own. The output depends on it, so it is fixed, while the
	// number of chunks that are compressed at once may follow the CPUs.
	chunkSize = 512 << 10
	// maxChunks bounds the chunks in flight and with them the memory, about
	// 2 MiB each.
	maxChunks = 5

	compressionLevel = flate.BestSpeed
)

// chunk is a piece of the tar on its way through the compressor.
type chunk struct {
	plain      []byte
	compressed bytes.Buffer
	deflate    *flate.Writer
	done       chan error // one value when compressed is ready
}

// gzipWriter writes one gzip member. Its chunks are compressed in parallel and
// written in their order by a goroutine of its own; the bytes do not depend on
// how many CPUs there are nor on how the input was cut into writes.
type gzipWriter struct {
	plain hash.Hash // of everything before compression
	index Indexer   // may be nil
	crc   uint32
	size  int64

	current *chunk
	made    int
	most    int
	free    chan *chunk
	queue   chan *chunk
	end     chan error // one value when the writing goroutine is gone
	failed  atomic.Pointer[error]
}

// newGzipWriter starts a member on out. Either close or abort must follow.
func newGzipWriter(out io.Writer, plain hash.Hash, index Indexer) *gzipWriter {
	most := min(runtime.GOMAXPROCS(0)+1, maxChunks)
	z := &gzipWriter{
		plain: plain,
		index: index,
		most:  most,
		free:  make(chan *chunk, most),
		queue: make(chan *chunk, most),
		end:   make(chan error, 1),
	}
	go z.writeChunks(out)
	return z
}

// Write takes the next bytes of the tar. An error may be that of an earlier write.
func (z *gzipWriter) Write(p []byte) (int, error) {
	written := 0
	for written < len(p) {
		c, err := z.chunk()
		if err != nil {
			return written, err
		}
		n := copy(c.plain[len(c.plain):cap(c.plain)], p[written:])
		c.plain = c.plain[:len(c.plain)+n]
		written += n
	}
	return written, nil
}

// readFrom takes the next n bytes of the tar straight from r and returns how
// many there were. A missing byte gives io.ErrUnexpectedEOF. fromReader tells
// whose error it is.
func (z *gzipWriter) readFrom(r io.Reader, n int64) (read int64, fromReader bool, err error) {
	for read < n {
		c, err := z.chunk()
		if err != nil {
			return read, false, err
		}
		have := len(c.plain)
		room := int(min(int64(cap(c.plain)-have), n-read))
		got, err := io.ReadFull(r, c.plain[have:have+room])
		c.plain = c.plain[:have+got]
		read += int64(got)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return read, true, err
		}
	}
	return read, false, nil
}

// chunk returns the chunk that is being filled; it has room for at least a byte.
func (z *gzipWriter) chunk() (*chunk, error) {
	if z.current != nil && len(z.current.plain) == cap(z.current.plain) {
		z.submit(false)
	}
	if err := z.failed.Load(); err != nil {
		return nil, *err
	}
	if z.current != nil {
		return z.current, nil
	}
	if z.made < z.most {
		select {
		case z.current = <-z.free:
		default:
			z.made++
			z.current = &chunk{plain: make([]byte, 0, chunkSize), done: make(chan error, 1)}
		}
	} else {
		z.current = <-z.free
	}
	return z.current, nil
}

// submit hands the current chunk to a goroutine that compresses it.
func (z *gzipWriter) submit(last bool) {
	c := z.current
	z.current = nil
	z.plain.Write(c.plain)
	z.crc = crc32.Update(z.crc, crc32.IEEETable, c.plain)
	z.size += int64(len(c.plain))
	z.queue <- c
	go func() { c.done <- c.compress(last) }()
}

// compress deflates the chunk so that its bytes can stand between others: it
// ends on a byte boundary, or, if it is the last one, ends the stream.
func (c *chunk) compress(last bool) (err error) {
	c.compressed.Reset()
	if c.deflate == nil {
		if c.deflate, err = flate.NewWriter(&c.compressed, compressionLevel); err != nil {
			return err
		}
	} else {
		c.deflate.Reset(&c.compressed)
	}
	if _, err := c.deflate.Write(c.plain); err != nil {
		return err
	}
	if last {
		return c.deflate.Close()
	}
	return c.deflate.Flush()
}

// writeChunks writes what is queued. After an error it goes on taking chunks,
// so that nobody waits for it in vain.
func (z *gzipWriter) writeChunks(out io.Writer) {
	_, err := io.WriteString(out, gzipHeader)
	at := Checkpoint{Gzip: int64(len(gzipHeader))}
	fail := func(e error) {
		err = e
		z.failed.Store(&e)
	}
	if err != nil {
		fail(err)
	}
	for c := range z.queue {
		compressErr := <-c.done
		if err == nil && compressErr != nil {
			fail(fmt.Errorf("compress: %w", compressErr))
		}
		if err == nil {
			if _, e := out.Write(c.compressed.Bytes()); e != nil {
				fail(e)
			}
		}
		if err == nil && z.index != nil {
			// Each chunk was compressed on its own.
			z.index.Checkpoint(at)
			z.index.Tar(c.plain)
			at.Tar += int64(len(c.plain))
			at.Gzip += int64(c.compressed.Len())
		}
		c.plain = c.plain[:0]
		z.free <- c
	}
	z.end <- err
}

// close ends the member on out, which must be the writer that it began on.
func (z *gzipWriter) close(out io.Writer) error {
	if _, err := z.chunk(); err != nil {
		z.abort()
		return err
	}
	z.submit(true)
	close(z.queue)
	if err := <-z.end; err != nil {
		return err
	}
	trailer := binary.LittleEndian.AppendUint32(nil, z.crc)
	trailer = binary.LittleEndian.AppendUint32(trailer, uint32(z.size))
	_, err := out.Write(trailer)
	return err
}

// abort leaves the member without an end and waits until out is no longer used.
func (z *gzipWriter) abort() {
	close(z.queue)
	<-z.end
}
