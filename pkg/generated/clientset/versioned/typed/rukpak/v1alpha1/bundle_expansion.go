// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content/listing"
)

// BundleExpansion reads and writes the content of bundles, which is a stream of bytes and no object.
type BundleExpansion interface {
	// GetContent opens the content of a bundle. Nothing is read ahead; the caller closes it, and ctx lasts as long as
	// the reading. What breaks off, and what the server cannot answer now, is asked for again. An error of the API is one
	// of k8s.io/apimachinery/pkg/api/errors; IsConflict means that there is no content (yet).
	GetContent(ctx context.Context, name string, opts GetContentOptions) (*Content, error)
	// PutContent makes body, a tar or tar.gz, the content of a bundle, and returns the bundle as it is then.
	// Body is streamed, and read once: a request that fails is not repeated.
	PutContent(ctx context.Context, name string, body io.Reader, opts PutContentOptions) (*v1alpha1.Bundle, error)
	// GetFile opens one file of a bundle's content; it costs what the file costs, however large the bundle is.
	// IsNotFound means that there is no such bundle or no such file.
	GetFile(ctx context.Context, name, path string, opts GetFileOptions) (*Content, error)
	// ListFiles goes through the entries of a directory of a bundle's content; "" is its root.
	ListFiles(ctx context.Context, name, path string, opts ListFilesOptions) iter.Seq2[listing.Entry, error]
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
	// IfNotDigest is the digest of content that the caller has. While the bundle has no other, the answer is an error,
	// IsNotModified.
	IfNotDigest string
	// BelowWatch reads below the path prefix watch/, where kube-apiserver does not end a request after a minute and
	// counts no seat for it. It takes the verb watch on bundles/content in place of get.
	BelowWatch bool
	// Patience is how long the read goes on trying without getting a byte further. 0 means two minutes, a
	// negative one that nothing is tried again.
	Patience time.Duration
	// Retrying, if set, is called before each pause after which something is tried again. An error that it returns ends the read
	// in place of that.
	Retrying func(Retry) error
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

// IsNotModified reports whether an error says that the content is the one that the caller has.
func IsNotModified(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code == http.StatusNotModified
}

// IsNoAnswer reports whether an error says that no answer came, or that it broke off, and the same request may get one later. It does
// not where that is no matter of time, IsLasting.
func IsNoAnswer(err error) bool {
	_, ok := errors.AsType[*transportError](err)
	return ok && !IsLasting(err)
}

// IsLasting reports whether no answer came for a reason that does not go away by itself: a certificate that is not trusted, a server
// without TLS, and credentials that cannot be had. It holds for the errors of every request of a client, also for those of objects.
func IsLasting(err error) bool {
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	_, plain := errors.AsType[tls.RecordHeaderError](err)
	return untrusted || plain || errors.Is(err, http.ErrSchemeMismatch) || IsNoCredentials(err)
}

// IsNoCredentials reports whether nothing was asked of the server, since the credentials for it could not be had: the command that
// the kubeconfig names for them has failed. That is not tried again.
func IsNoCredentials(err error) bool {
	unsent, ok := errors.AsType[*url.Error](err)
	// client-go has no type for it, and puts these words in front.
	return ok && strings.HasPrefix(unsent.Err.Error(), "getting credentials: ")
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

// transportError means that there was no answer. IsNoAnswer tells whether the same request may get one later.
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
