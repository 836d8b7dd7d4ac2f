// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"

	"rukpak.io/apiserver/pkg/content/listing"
)

// Content is content that is being read. It belongs to one goroutine.
type Content struct {
	// Digest is that of the whole content, "sha256:" and 64 hexadecimal digits.
	Digest string
	// Size is the number of bytes of the whole content.
	Size int64
	// Offset and Length are the part that is read.
	Offset, Length int64
	// MediaType is that of the whole content.
	MediaType string

	body io.ReadCloser
	hash hash.Hash // nil where a part is read
	read int64     // how many bytes of the part

	// resume asks for the part from an offset on. nil where that cannot be done.
	resume func(ctx context.Context, offset, length int64) (*Content, error)
	ctx    context.Context
	// tries are those of resume without a byte in between.
	tries tries
}

// NewContent makes a Content, for fakes: a part of one with this digest and size. It is not verified, and not resumed.
func NewContent(digest string, size, offset, length int64, body io.ReadCloser) *Content {
	return &Content{Digest: digest, Size: size, Offset: offset, Length: length, MediaType: "application/gzip", body: body}
}

// Read reads on. Content that is read whole ends with io.EOF only if it has the digest. A connection that breaks, a
// server that goes away and a request that kube-apiserver ends after a minute are not seen: the rest is asked for, of
// the same content even if the bundle has another by now, until the patience of the options is over without a byte.
func (c *Content) Read(p []byte) (int, error) {
	for {
		n, err := c.body.Read(p)
		c.read += int64(n)
		if n > 0 {
			c.tries.succeed()
		}
		if c.hash != nil {
			// A hash takes everything.
			_, _ = c.hash.Write(p[:n])
		}
		switch {
		case err == nil, n > 0 && c.resume != nil:
			// With bytes in hand what went wrong can wait for the next call, which meets it again.
			return n, nil
		case c.resume == nil:
			return n, c.end(err)
		case c.read == c.Length:
			return n, c.end(io.EOF)
		}
		if err := c.reopen(err); err != nil {
			return n, err
		}
	}
}

// end checks the digest where content was read whole.
func (c *Content) end(err error) error {
	if c.hash == nil || err != io.EOF {
		return err
	}
	if got := "sha256:" + hex.EncodeToString(c.hash.Sum(nil)); got != c.Digest {
		return fmt.Errorf("%w: %s, not %s", ErrDigestMismatch, got, c.Digest)
	}
	return err
}

// Close ends the reading.
func (c *Content) Close() error { return c.body.Close() }

// reopen asks for what has not been read yet, because of an error.
func (c *Content) reopen(cause error) error {
	// The response is of no use any more, whatever its end is.
	_ = c.Close()
	if c.read > c.Length {
		return fmt.Errorf("more than the %d bytes that were promised came", c.Length)
	}
	if cause == io.EOF {
		// What ends early without saying so has not ended.
		cause = io.ErrUnexpectedEOF
	}
	var next *Content
	err := c.tries.untilOnePasses(c.ctx, cause, func(ctx context.Context) (err error) {
		next, err = c.resume(ctx, c.Offset+c.read, c.Length-c.read)
		return err
	})
	if err != nil {
		return fmt.Errorf("after %d of %d bytes: %w", c.read, c.Length, err)
	}
	if next.Digest != c.Digest || next.Offset != c.Offset+c.read || next.Length != c.Length-c.read {
		_ = next.Close()
		return fmt.Errorf("after %d of %d bytes the server went on with %d bytes at %d of %s", c.read, c.Length, next.Length, next.Offset, next.Digest)
	}
	c.body = next.body
	return nil
}

// GetContent opens the content of a bundle.
func (c *bundles) GetContent(ctx context.Context, name string, opts GetContentOptions) (*Content, error) {
	if opts.Offset < 0 || opts.Length < 0 {
		return nil, fmt.Errorf("content of bundle %q: offset %d and length %d must not be negative", name, opts.Offset, opts.Length)
	}
	content, err := c.open(ctx, newTries(opts.Patience, opts.Retrying), func(ctx context.Context) (*Content, error) { return c.openContent(ctx, name, opts, "") })
	if err != nil {
		return nil, err
	}
	content.resume = func(ctx context.Context, offset, length int64) (*Content, error) {
		return c.openContent(ctx, name, GetContentOptions{Digest: content.Digest, Offset: offset, Length: length, BelowWatch: opts.BelowWatch}, content.Digest)
	}
	return content, nil
}

// open opens content by requests that may be repeated.
func (c *bundles) open(ctx context.Context, opening tries, request func(context.Context) (*Content, error)) (content *Content, err error) {
	going := opening
	err = opening.untilOnePasses(ctx, nil, func(ctx context.Context) (err error) {
		content, err = request(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	content.ctx, content.tries = ctx, going
	return content, nil
}

// openContent makes one request. ifRange is the digest that a part has to be of.
func (c *bundles) openContent(ctx context.Context, name string, opts GetContentOptions, ifRange string) (*Content, error) {
	request := c.GetClient().Get()
	if opts.BelowWatch {
		request = request.Prefix("watch")
	}
	request = request.Namespace(c.GetNamespace()).Resource("bundles").Name(name).SubResource("content")
	if opts.Digest != "" {
		request = request.Param("digest", opts.Digest)
	}
	content, err := c.openPart(ctx, request, "application/gzip, application/json;q=0.1", opts, ifRange, name)
	if err == nil && opts.Digest != "" && content.Digest != opts.Digest {
		// The response is of no use, whatever its end is.
		_ = content.Close()
		return nil, fmt.Errorf("content of bundle %q: %w: %s was asked for, and %s came", name, ErrDigestMismatch, opts.Digest, content.Digest)
	}
	return content, err
}

// openPart makes one request for all or a part of something.
func (c *bundles) openPart(ctx context.Context, request *rest.Request, accept string, opts GetContentOptions, ifRange, name string) (*Content, error) {
	header := http.Header{"Accept": {accept}}
	part := opts.Offset > 0 || opts.Length > 0
	if part {
		end := ""
		if opts.Length > 0 {
			end = strconv.FormatInt(opts.Offset+opts.Length-1, 10)
		}
		header.Set("Range", fmt.Sprintf("bytes=%d-%s", opts.Offset, end))
	}
	if opts.IfDigest != "" {
		header.Set("If-Match", strconv.Quote(opts.IfDigest))
	}
	if opts.IfNotDigest != "" {
		header.Set("If-None-Match", strconv.Quote(opts.IfNotDigest))
	}
	if ifRange != "" {
		header.Set("If-Range", strconv.Quote(ifRange))
	}
	response, err := c.watchedGet(ctx, request, header, name)
	if err != nil {
		return nil, err
	}
	content, err := newContent(response, part)
	if err == nil && part {
		err = content.expect(opts.Offset, opts.Length)
	}
	if err != nil {
		// The response is of no use, whatever its end is.
		_ = response.Body.Close()
		return nil, fmt.Errorf("content of bundle %q: %w", name, err)
	}
	return content, nil
}

// expect fails where another part came than was asked for. One that is shorter, which RFC 9110 allows, is gone on with at its end.
func (c *Content) expect(offset, length int64) error {
	whole := c.Size - offset
	if length > 0 {
		whole = min(whole, length)
	}
	if c.Offset != offset || c.Length <= 0 || c.Length > whole {
		return fmt.Errorf("the response has %d bytes at %d of %d, which is not the part that was asked for", c.Length, c.Offset, c.Size)
	}
	c.Length = whole
	return nil
}

// newContent reads the head of a response: RFC 9110, sections 8.8.3 and 14.4.
func newContent(response *http.Response, part bool) (*Content, error) {
	if strings.HasPrefix(response.Header.Get("ETag"), "W/") && response.Header.Get("Content-Type") == listing.MediaType {
		return nil, ErrIsDirectory
	}
	digest, err := strconv.Unquote(response.Header.Get("ETag"))
	if err != nil || len(digest) != len("sha256:")+2*sha256.Size || digest[:len("sha256:")] != "sha256:" {
		return nil, fmt.Errorf("the response has no digest for an ETag: %q", response.Header.Get("ETag"))
	}
	c := &Content{Digest: digest, MediaType: response.Header.Get("Content-Type"), body: response.Body, Size: response.ContentLength, Length: response.ContentLength}
	if response.StatusCode != http.StatusPartialContent {
		if part {
			return nil, fmt.Errorf("the response has the status %d in place of a part", response.StatusCode)
		}
		if c.Size < 0 {
			return nil, errors.New("the response has no length")
		}
		c.hash = sha256.New()
		return c, nil
	}
	var last int64
	value := response.Header.Get("Content-Range")
	if _, err := fmt.Sscanf(value, "bytes %d-%d/%d", &c.Offset, &last, &c.Size); err != nil {
		return nil, fmt.Errorf("the response has a Content-Range that is none: %q", value)
	}
	c.Length = last - c.Offset + 1
	return c, nil
}
