// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"compress/gzip"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// listBuffer is how much of a list is sent at once. One that is shorter is not worth compressing.
	listBuffer = 32 << 10
	// listPause is how long what is there of a list is held back until it is sent, however little it is. It is looked at when an entry
	// comes: where the next one is long in coming, what is there waits for it.
	listPause = time.Second
	// maxCompressing is how many lists are compressed at the same time, each of which takes 1.2 MiB.
	maxCompressing = 16
)

var (
	compressing = make(chan struct{}, maxCompressing)
	// Lists are repetitive: more than the least effort makes them a little smaller, and takes much longer.
	compressors = sync.Pool{New: func() any { w, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed); return w }}
)

// compression is how a reader takes what is sent: RFC 9110, section 12.5.3.
type compression struct {
	accepted bool // it may be gzip, which is liked no less than what is not compressed
	required bool // nothing else is taken
}

func compressionOf(h http.Header) compression {
	weights := map[string]float64{}
	for item := range strings.SplitSeq(strings.Join(h.Values("Accept-Encoding"), ","), ",") {
		name, params, _ := strings.Cut(item, ";")
		name = strings.ToLower(strings.TrimSpace(name))
		if name == "x-gzip" {
			name = "gzip"
		}
		weights[name] = max(weights[name], weightOf(params))
	}
	others, rest := weights["*"]
	zipped, listed := weights["gzip"]
	if !listed {
		zipped = others
	}
	plain, listed := weights["identity"]
	refused := plain == 0 && (listed || rest && others == 0)
	return compression{accepted: zipped > 0 && zipped >= plain, required: zipped > 0 && refused}
}

// weightOf is the weight in the parameters of a coding. One that is none does not count.
func weightOf(params string) float64 {
	for param := range strings.SplitSeq(params, ";") {
		key, value, _ := strings.Cut(strings.TrimSpace(param), "=")
		if !strings.EqualFold(key, "q") {
			continue
		}
		if weight, err := strconv.ParseFloat(value, 64); err == nil && weight >= 0 && weight <= 1 {
			return weight
		}
		return 0
	}
	return 1
}

// compressor sends a list, compressed where the reader takes that and it is long. If there are too many of them, the list is sent as it
// is, also to who does not want it so: a server may disregard that, and it is better than nothing.
type compressor struct {
	compression
	out   *sender
	long  bool // it is, as far as is known
	begun bool
	zip   *gzip.Writer // nil where it is sent as it is
}

func (c *compressor) Write(b []byte) (int, error) {
	if !c.begun {
		c.begun = true
		if c.required || c.accepted && (c.long || len(b) >= listBuffer) {
			c.compress()
		}
	}
	if c.zip != nil {
		return c.zip.Write(b)
	}
	return c.out.Write(b)
}

// compress begins to, if there are not too many that do. The caller writes at once, which sends the header, so that no other answer can
// follow that would be said to be compressed.
func (c *compressor) compress() {
	select {
	case compressing <- struct{}{}:
	default:
		return
	}
	c.out.Header().Set("Content-Encoding", "gzip")
	c.zip = compressors.Get().(*gzip.Writer)
	c.zip.Reset(c.out)
}

// flush sends what is held back.
func (c *compressor) flush() error {
	if c.zip != nil {
		if err := c.zip.Flush(); err != nil {
			return err
		}
	}
	// Where that is not supported it comes later.
	_ = c.out.control.Flush()
	return nil
}

// end sends the end of what was compressed.
func (c *compressor) end() error {
	if c.zip == nil {
		return nil
	}
	return c.zip.Close()
}

// release leaves the place to another, whether it was sent or not.
func (c *compressor) release() {
	if c.zip == nil {
		return
	}
	c.zip.Reset(nil)
	compressors.Put(c.zip)
	c.zip = nil
	<-compressing
}
