// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"rukpak.io/apiserver/pkg/content/listing"
)

// GetFileOptions choose what is read of a file.
type GetFileOptions struct {
	// Digest picks one of the contents that are still served; empty means the current one.
	Digest string
	// Offset is the first byte that is read, and Length how many at most; 0 means to the end.
	Offset, Length int64
	// IfDigest is the digest that the file has to have. Another file is an error, IsPreconditionFailed.
	IfDigest string
	// Patience and Retrying are as in GetContentOptions.
	Patience time.Duration
	Retrying func(Retry) error
}

// ListFilesOptions choose what is listed.
type ListFilesOptions struct {
	// Digest picks one of the contents that are still served; empty means the current one.
	Digest string
	// Recursive lists everything below the directory.
	Recursive bool
	// Patience is how long the list is asked for again until its next entry comes. 0 means two minutes, a negative one that
	// nothing is tried again.
	Patience time.Duration
	// Retrying is as in GetContentOptions.
	Retrying func(Retry) error
}

var (
	// ErrIsDirectory means that a file was asked for where there is a directory.
	ErrIsDirectory = errors.New("is a directory")
	// ErrNotDirectory means that a list was asked for where there is no directory.
	ErrNotDirectory = errors.New("not a directory")
)

var errPath = errors.New("a path has no empty components, and none that is . or ..")

// GetFile opens a file of a bundle's content by its path, in which symbolic links are followed. A directory there is the error
// ErrIsDirectory. Digest and size of what it returns are those of the file. It goes on where it broke off as GetContent does, if the file is the same then.
func (c *bundles) GetFile(ctx context.Context, name, path string, opts GetFileOptions) (*Content, error) {
	if path == "" || strings.HasSuffix(path, "/") {
		return nil, fmt.Errorf("file %q of bundle %q: that is a directory", path, name)
	}
	if opts.Offset < 0 || opts.Length < 0 {
		return nil, fmt.Errorf("file %q of bundle %q: offset %d and length %d must not be negative", path, name, opts.Offset, opts.Length)
	}
	open := func(ctx context.Context, opts GetFileOptions) (*Content, error) {
		request, err := c.inside(name, path, opts.Digest)
		if err != nil {
			return nil, err
		}
		return c.openPart(ctx, request, "*/*", GetContentOptions{Offset: opts.Offset, Length: opts.Length, IfDigest: opts.IfDigest}, "", name)
	}
	content, err := c.open(ctx, newTries(opts.Patience, opts.Retrying), func(ctx context.Context) (*Content, error) { return open(ctx, opts) })
	if err != nil {
		return nil, err
	}
	content.resume = func(ctx context.Context, offset, length int64) (*Content, error) {
		return open(ctx, GetFileOptions{Digest: opts.Digest, Offset: offset, Length: length, IfDigest: content.Digest})
	}
	return content, nil
}

// ListFiles goes through the entries of a directory of a bundle's content, in the order of their names; "" is the root. Something
// else there is the error ErrNotDirectory. The list is read as the loop goes on. An error is the last thing that it yields. What
// breaks off, and what brings nothing for a minute, goes on where it was, in the same content even if the bundle has another by now, where GetContent would do so.
//
//	for entry, err := range bundles.ListFiles(ctx, "app", "manifests", ListFilesOptions{}) {
func (c *bundles) ListFiles(ctx context.Context, name, path string, opts ListFilesOptions) iter.Seq2[listing.Entry, error] {
	return func(yield func(listing.Entry, error) bool) {
		l := &fileList{bundles: c, name: name, path: strings.TrimSuffix(path, "/"), opts: opts, digest: opts.Digest, yield: yield, tries: newTries(opts.Patience, opts.Retrying)}
		if err := l.tries.untilOnePasses(ctx, nil, l.request); err != nil && err != errStopped {
			yield(listing.Entry{}, err)
		}
	}
}

var (
	// errStopped ends a list that nobody reads on.
	errStopped = errors.New("stopped")
	// errBegunAnew ends a list that was to go on and does not, as of a server that is older than that.
	errBegunAnew = errors.New("the server does not go on in a list")
)

// fileList is a list that is being read, by one request or several.
type fileList struct {
	*bundles
	name, path string
	opts       ListFilesOptions
	yield      func(listing.Entry, error) bool
	tries      tries

	begun       bool   // there was an entry
	first, last string // entry of all
	served      string // digest of what the latest request lists, where the server says it
	digest      string // that is asked for: of the options, or what the entries are of
	broken      error  // why the request before broke off
}

// request makes one request, for what has not come yet. Its error is retriable only where it can go on.
func (l *fileList) request(ctx context.Context) error {
	request, err := l.inside(l.name, l.path, l.digest)
	if err != nil {
		return err
	}
	if l.opts.Recursive {
		request = request.Param("recursive", "true")
	}
	if l.begun {
		request = request.Param("after", l.last)
	}
	response, err := l.watchedGet(ctx, request, http.Header{"Accept": {listing.MediaType}}, l.name)
	if err != nil {
		return err
	}
	// It was only read.
	defer response.Body.Close()
	if strings.HasPrefix(response.Header.Get("ETag"), `"`) {
		// A list has a weak one.
		return fmt.Errorf("files of bundle %q: %q is %w", l.name, l.path, ErrNotDirectory)
	}
	tag, _ := strings.CutPrefix(response.Header.Get("ETag"), "W/")
	l.served = cmp.Or(l.opts.Digest, strings.Trim(tag, `"`))
	body := &breakable{Reader: response.Body}
	err = listing.Read(body, l.add)
	switch {
	case err == nil || err == errStopped:
		return err
	case err == errBegunAnew:
		return fmt.Errorf("%w: %w", l.broken, err)
	case err == io.EOF:
		err = io.ErrUnexpectedEOF
	}
	l.broken = fmt.Errorf("files of bundle %q: %w", l.name, err)
	if body.broken && (!l.begun || l.digest != "") {
		return &transportError{l.broken}
	}
	return l.broken
}

// add passes an entry on.
func (l *fileList) add(e listing.Entry) error {
	path := e.Path()
	switch {
	case !l.begun:
		l.begun, l.first, l.digest = true, path, l.served
	case path == l.first:
		return errBegunAnew
	}
	l.last = path
	if !l.yield(e, nil) {
		return errStopped
	}
	// What the caller takes for it is not the server's time.
	l.tries.further()
	return nil
}

// breakable notes whether what it reads broke off, which tells that from what is no list.
type breakable struct {
	io.Reader
	broken bool
}

func (b *breakable) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.broken = b.broken || err != nil && err != io.EOF
	return n, err
}

// inside begins a request for a path in a bundle's content, with a slash behind it if it is the root. Names may have any bytes,
// which a request for a subresource would not take.
func (c *bundles) inside(name, path, digest string) (*rest.Request, error) {
	for part := range strings.SplitSeq(path, "/") {
		if path != "" && (part == "" || part == "." || part == "..") {
			return nil, fmt.Errorf("file %q of bundle %q: %w", path, name, errPath)
		}
	}
	content := c.GetClient().Get().Namespace(c.GetNamespace()).Resource("bundles").Name(name).SubResource("content")
	if err := content.Error(); err != nil {
		return nil, fmt.Errorf("file %q of bundle %q: %w", path, name, err)
	}
	base := strings.TrimSuffix(c.GetClient().Get().AbsPath("/").URL().Path, "/")
	request := c.GetClient().Get().AbsPath(strings.TrimPrefix(content.URL().Path, base) + "/" + path)
	if digest != "" {
		request = request.Param("digest", digest)
	}
	return request, nil
}
