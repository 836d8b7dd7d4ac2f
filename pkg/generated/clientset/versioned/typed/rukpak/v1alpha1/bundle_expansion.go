// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// BundleExpansion reads and writes the content of bundles, which is a stream of bytes and no object.
type BundleExpansion interface {
	// GetContent opens the content of a bundle. Nothing is read ahead; the caller closes it. An error of
	// the API is one of k8s.io/apimachinery/pkg/api/errors; IsConflict means that there is no content (yet).
	GetContent(ctx context.Context, name string, opts GetContentOptions) (*Content, error)
	// PutContent makes body, a tar or tar.gz, the content of a bundle, and returns the bundle as it is then.
	// Body is streamed, and read once: a request that fails is not repeated.
	PutContent(ctx context.Context, name string, body io.Reader, opts PutContentOptions) (*v1alpha1.Bundle, error)
	// UploadContent makes size bytes, a tar or tar.gz, the content of a bundle, and returns the bundle as it is then. They are
	// sent in several requests, each of which may fail: it goes on where the server is, until it is done.
	UploadContent(ctx context.Context, name string, content io.ReaderAt, size int64, opts UploadContentOptions) (*v1alpha1.Bundle, error)
}

// GetContentOptions choose what is read.
type GetContentOptions struct {
	// Digest picks one of the contents that are still served; empty means the current one.
	Digest string
	// Offset is the first byte that is read, and Length how many at most; 0 means to the end.
	Offset, Length int64
	// IfDigest, with an Offset, is the digest of the content that the bytes before Offset came from.
	// Other content is an error, IsPreconditionFailed.
	IfDigest string
}

// PutContentOptions guard a write.
type PutContentOptions struct {
	// IfDigest is the digest of the content that the write replaces. If the bundle has other content by
	// then, or none, the write fails, IsPreconditionFailed.
	IfDigest string
	// IfNone makes the write fail, IsPreconditionFailed, where there is content already.
	IfNone bool
}

// ErrDigestMismatch is what reading content ends with, in place of io.EOF, when the bytes are not those of
// the digest.
var ErrDigestMismatch = errors.New("content does not have the digest that the server named")

// IsPreconditionFailed reports whether an error says that the content is not the one that was expected.
func IsPreconditionFailed(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code == http.StatusPreconditionFailed
}

// Content is content that is being read.
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
}

// NewContent makes a Content, for fakes: a part of one with this digest and size. It is not verified.
func NewContent(digest string, size, offset, length int64, body io.ReadCloser) *Content {
	return &Content{Digest: digest, Size: size, Offset: offset, Length: length, MediaType: "application/gzip", body: body}
}

// Read reads on. Content that is read whole ends with io.EOF only if it has the digest.
func (c *Content) Read(p []byte) (int, error) {
	n, err := c.body.Read(p)
	if c.hash == nil {
		return n, err
	}
	c.hash.Write(p[:n])
	if err == io.EOF {
		if got := "sha256:" + hex.EncodeToString(c.hash.Sum(nil)); got != c.Digest {
			return n, fmt.Errorf("%w: %s, not %s", ErrDigestMismatch, got, c.Digest)
		}
	}
	return n, err
}

// Close ends the reading.
func (c *Content) Close() error { return c.body.Close() }

// GetContent opens the content of a bundle.
func (c *bundles) GetContent(ctx context.Context, name string, opts GetContentOptions) (*Content, error) {
	if opts.Offset < 0 || opts.Length < 0 {
		return nil, fmt.Errorf("content of bundle %q: offset %d and length %d must not be negative", name, opts.Offset, opts.Length)
	}
	request := c.GetClient().Get().Namespace(c.GetNamespace()).Resource("bundles").Name(name).SubResource("content")
	if opts.Digest != "" {
		request = request.Param("digest", opts.Digest)
	}
	header := http.Header{"Accept": {"application/gzip, application/json;q=0.1"}}
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
	response, err := c.roundTrip(ctx, request, http.MethodGet, nil, header, name)
	if err != nil {
		return nil, err
	}
	content, err := newContent(response, part)
	if err != nil {
		// The response is of no use, whatever its end is.
		_ = response.Body.Close()
		return nil, fmt.Errorf("content of bundle %q: %w", name, err)
	}
	return content, nil
}

// newContent reads the head of a response: RFC 9110, sections 8.8.3 and 14.4.
func newContent(response *http.Response, part bool) (*Content, error) {
	digest, err := strconv.Unquote(response.Header.Get("ETag"))
	if err != nil || !strings.HasPrefix(digest, "sha256:") {
		return nil, fmt.Errorf("the response has no digest for an ETag: %q", response.Header.Get("ETag"))
	}
	c := &Content{Digest: digest, MediaType: response.Header.Get("Content-Type"), body: response.Body, Size: response.ContentLength, Length: response.ContentLength}
	if response.StatusCode != http.StatusPartialContent {
		if part {
			return nil, fmt.Errorf("the response has the status %d in place of a part", response.StatusCode)
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

// PutContent makes body the content of a bundle.
func (c *bundles) PutContent(ctx context.Context, name string, body io.Reader, opts PutContentOptions) (*v1alpha1.Bundle, error) {
	request := c.GetClient().Put().Namespace(c.GetNamespace()).Resource("bundles").Name(name).SubResource("content")
	header := http.Header{"Accept": {"application/json"}, "Content-Type": {"application/octet-stream"}}
	if opts.IfDigest != "" {
		header.Set("If-Match", strconv.Quote(opts.IfDigest))
	}
	if opts.IfNone {
		header.Set("If-None-Match", "*")
	}
	response, err := c.roundTrip(ctx, request, http.MethodPut, body, header, name)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	bundle := &v1alpha1.Bundle{}
	if err := json.NewDecoder(response.Body).Decode(bundle); err != nil {
		return nil, fmt.Errorf("content of bundle %q was written, but the answer cannot be read: %w", name, err)
	}
	return bundle, nil
}

// maxErrorBytes bounds how much of an answer is read that says what went wrong.
const maxErrorBytes = 1 << 20

// roundTrip sends a request, and makes an error of an answer that is one.
func (c *bundles) roundTrip(ctx context.Context, request *rest.Request, method string, body io.Reader, header http.Header, name string) (*http.Response, error) {
	response, err := c.exchange(ctx, request, method, body, 0, header, name)
	if err != nil {
		return nil, err
	}
	if response.StatusCode/100 == 2 {
		return response, nil
	}
	defer response.Body.Close()
	return nil, statusError(response, method, name)
}

// exchange sends a request with the client's own transport. The client's Request would hide the headers of the
// response, which say what is read. A size of 0 is unknown if there is a body.
func (c *bundles) exchange(ctx context.Context, request *rest.Request, method string, body io.Reader, size int64, header http.Header, name string) (*http.Response, error) {
	client, ok := c.GetClient().(*rest.RESTClient)
	if !ok {
		return nil, fmt.Errorf("content of bundle %q: a client of type %T has no transport", name, c.GetClient())
	}
	httpClient := client.Client
	if httpClient == nil {
		httpClient = http.DefaultClient
	}
	out, err := http.NewRequestWithContext(ctx, method, request.URL().String(), body)
	if err != nil {
		return nil, fmt.Errorf("content of bundle %q: %w", name, err)
	}
	out.Header = header
	if size > 0 {
		out.ContentLength = size
	}
	response, err := httpClient.Do(out)
	if err != nil {
		return nil, &transportError{fmt.Errorf("content of bundle %q: %w", name, err)}
	}
	return response, nil
}

// transportError means that there was no answer. The same request may get one later.
type transportError struct{ error }

func (e *transportError) Unwrap() error { return e.error }

// statusError makes the error that a response tells of.
func statusError(response *http.Response, method, name string) error {
	data, err := io.ReadAll(io.LimitReader(response.Body, maxErrorBytes))
	if err != nil {
		data = nil
	}
	if kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); kind == "application/json" {
		status := metav1.Status{}
		if json.Unmarshal(data, &status) == nil && status.Status == metav1.StatusFailure {
			return &apierrors.StatusError{ErrStatus: status}
		}
	}
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	if err != nil {
		seconds = 0
	}
	resource := schema.GroupResource{Group: v1alpha1.GroupName, Resource: "bundles/content"}
	return apierrors.NewGenericServerResponse(response.StatusCode, method, resource, name, string(data), seconds, true)
}
