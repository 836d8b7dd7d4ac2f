// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net/http"
	"path"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// UploadContentOptions guard an upload, and say how patient it is.
type UploadContentOptions struct {
	// IfDigest and IfNone are those of PutContentOptions. They hold for the whole of the upload.
	IfDigest string
	IfNone   bool
	// Patience is how long the upload goes on trying without getting a byte further. 0 means five minutes, a negative one
	// that nothing is tried again.
	Patience time.Duration
	// Retrying, if set, is called before each pause after which something is tried again. An error that it returns ends the upload
	// in place of that.
	Retrying func(Retry) error
	// ChunkSize is the size of the first request, in bytes; the others follow from how long it takes. 0 means 8 MiB.
	ChunkSize int64
	// Progress, if set, is called with the number of bytes that the server has, whenever there are more, or fewer where the
	// upload had to begin anew.
	Progress func(sent int64)
	// Resume makes the upload go on with one of the same bytes that the same user began and that did not end, in this process or
	// another; and one that ends early, because ctx does or patience is over, is left to be gone on with, for as long as the server
	// keeps it. The content is read once more for that. With IfDigest or IfNone it does nothing.
	Resume bool
}

const (
	defaultPatience  = 5 * time.Minute
	defaultChunkSize = 8 << 20
	minChunkSize     = 256 << 10
	maxChunkSize     = 64 << 20
	// chunkTime is how long a request should take: well below the minute after which kube-apiserver ends it.
	chunkTime = 15 * time.Second
	// stallTimeout is how long a request may get no byte further, or no answer. kube-apiserver answers within a minute.
	stallTimeout = 75 * time.Second
	minPause     = 100 * time.Millisecond
	maxPause     = 10 * time.Second
	// maxRestarts is how often an upload begins anew that the server has lost.
	maxRestarts = 3
	// maxVain is how often in a row the server may take what is sent and be no further than it was before, or have less than it had.
	maxVain = 8
)

// UploadContent makes size bytes of content, a tar or tar.gz, the content of a bundle, and returns the bundle as it is then. They are
// sent in several requests, as draft-ietf-httpbis-resumable-upload has it. What breaks off, or the server cannot take
// now, goes on where it was, through any replica, until Patience is over without progress or ctx ends; other errors of the
// API are returned as they are. A server, or a proxy, that takes what is sent and is no further after it is given up sooner. It needs the verbs create, get, patch and delete on bundles/uploads and update on
// bundles/content. The bytes must not change meanwhile: at the end they are checked against their digest.
func (c *bundles) UploadContent(ctx context.Context, name string, content io.ReaderAt, size int64, opts UploadContentOptions) (*v1alpha1.Bundle, error) {
	if size < 0 {
		return nil, fmt.Errorf("content of bundle %q: a size of %d", name, size)
	}
	u := &contentUpload{bundles: c, name: name, content: content, size: size, opts: opts, chunk: defaultChunkSize, whole: sha256.New()}
	if opts.ChunkSize > 0 {
		u.chunk = opts.ChunkSize
	}
	resume := opts.Resume && opts.IfDigest == "" && !opts.IfNone
	if resume {
		if err := u.hashAll(ctx); err != nil {
			return nil, err
		}
	}
	bundle, err := u.run(ctx)
	if err != nil && u.id != "" && !u.ended && !(resume && (ctx.Err() != nil || retriable(err))) {
		u.abort(ctx)
	}
	return bundle, err
}

// contentUpload is an upload under way.
type contentUpload struct {
	*bundles
	name    string
	content io.ReaderAt
	size    int64
	opts    UploadContentOptions

	id      string // of the upload, "" before it is begun
	offset  int64  // how many bytes the server has
	ended   bool   // the server has forgotten it, or will soon
	chunk   int64
	whole   hash.Hash
	hashed  int64  // how many bytes of the content are in whole
	resumed bool   // somebody else began it, maybe for an earlier spec
	repr    string // digest field of the whole, where that is known before all is sent
	begun   int    // how often it was begun
}

// errLost means that the server does not know the upload any more.
var errLost = errors.New("the server has lost the upload")

// errVain means that the server says that it took what was sent, and has no more than before. Another replica may do better.
var errVain error = &transportError{errors.New("the server, or a proxy before it, answered that all is well, and got no byte further")}

// headway counts what an upload does in vain.
type headway struct {
	furthest int64 // that the server was
	vain     int   // requests since then after which it had no more than before, though it took them, or had less
}

// note tells where the server is after a request, where it was before, and whether it took the request.
func (h *headway) note(before, after int64, took bool) {
	switch {
	case after > h.furthest:
		h.furthest, h.vain = after, 0
	case after < before, after == before && took:
		h.vain++
	}
}

// run sends until all is there, and tries again what may succeed then.
func (u *contentUpload) run(ctx context.Context) (*v1alpha1.Bundle, error) {
	patience := cmp.Or(u.opts.Patience, defaultPatience)
	progress, pause := time.Now(), minPause
	asked := true // whether offset is what the server said last
	var way headway
	for {
		before := u.offset
		var bundle *v1alpha1.Bundle
		err := u.locate(ctx, asked)
		if err == nil {
			bundle, err = u.send(ctx)
			asked = err == nil
		}
		if bundle != nil {
			return bundle, nil
		}
		way.note(before, u.offset, err == nil)
		if u.offset != before {
			progress, pause = time.Now(), minPause
			u.report()
		}
		if err == nil && u.offset <= before {
			// The answer need not have said where it is.
			err, asked = errVain, false
		}
		switch {
		case err == nil:
			continue
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, errLost) && u.begun < maxRestarts:
			u.id, u.offset, u.resumed, asked, way = "", 0, false, true, headway{}
		case !retriable(err):
			return nil, err
		case way.vain >= maxVain:
			return nil, fmt.Errorf("content of bundle %q: no progress in %d requests at byte %d of %d: %w", u.name, way.vain, u.offset, u.size, err)
		}
		wait := max(pause/2+rand.N(pause/2), retryAfter(err))
		if time.Since(progress)+wait > patience {
			return nil, fmt.Errorf("content of bundle %q: no progress for %s at byte %d of %d: %w", u.name, time.Since(progress).Round(time.Second), u.offset, u.size, err)
		}
		if err := tell(u.opts.Retrying, err, progress, wait, patience); err != nil {
			return nil, err
		}
		pause = min(2*pause, maxPause)
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

func (u *contentUpload) report() {
	if u.opts.Progress != nil {
		u.opts.Progress(u.offset)
	}
}

// locate begins the upload, or asks where it is, unless that is known.
func (u *contentUpload) locate(ctx context.Context, known bool) error {
	if u.id == "" && u.repr != "" && u.begun == 0 {
		found, err := u.find(ctx)
		if found || err != nil {
			return err
		}
	}
	if u.id == "" {
		return u.begin(ctx)
	}
	if known {
		return nil
	}
	response, err := u.do(ctx, http.MethodHead, nil, 0, http.Header{})
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// hashAll computes the digest of the whole.
func (u *contentUpload) hashAll(ctx context.Context) error {
	sum := sha256.New()
	for at := int64(0); at < u.size; at += maxChunkSize {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if _, err := io.Copy(sum, io.NewSectionReader(u.content, at, min(maxChunkSize, u.size-at))); err != nil {
			return fmt.Errorf("read the content: %w", err)
		}
	}
	u.repr = digestField(sum)
	return nil
}

// find looks for an upload of the same bytes that was begun and has not ended.
func (u *contentUpload) find(ctx context.Context) (bool, error) {
	response, err := u.do(ctx, http.MethodGet, nil, 0, http.Header{"Accept": {"application/json"}})
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	var list struct {
		Uploads []struct {
			ID         string `json:"id"`
			Offset     int64  `json:"offset"`
			Length     int64  `json:"length"`
			Complete   bool   `json:"complete"`
			ReprDigest string `json:"reprDigest"`
		} `json:"uploads"`
	}
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
		return false, &transportError{fmt.Errorf("uploads to bundle %q: %w", u.name, err)}
	}
	for _, other := range list.Uploads {
		if !other.Complete && other.Length == u.size && other.ReprDigest == u.repr {
			u.id, u.offset, u.resumed = other.ID, other.Offset, true
			u.begun++
			u.report()
			return true, nil
		}
	}
	return false, nil
}

func (u *contentUpload) begin(ctx context.Context) error {
	header := http.Header{"Upload-Complete": {"?0"}, "Upload-Length": {strconv.FormatInt(u.size, 10)}, "Accept": {"application/json"}}
	if u.opts.IfDigest != "" {
		header.Set("If-Match", strconv.Quote(u.opts.IfDigest))
	}
	if u.opts.IfNone {
		header.Set("If-None-Match", "*")
	}
	if u.repr != "" {
		header.Set("Repr-Digest", u.repr)
	}
	response, err := u.do(ctx, http.MethodPost, nil, 0, header)
	if err != nil {
		return err
	}
	u.id = path.Base(response.Header.Get("Location"))
	u.begun++
	if err := response.Body.Close(); err != nil {
		return err
	}
	if response.StatusCode != http.StatusCreated || len(u.id) < 2 {
		return fmt.Errorf("content of bundle %q: the answer to the beginning of an upload has the status %d and the Location %q", u.name, response.StatusCode, response.Header.Get("Location"))
	}
	return nil
}

// send sends the next chunk. With the last one it returns the bundle.
func (u *contentUpload) send(ctx context.Context) (*v1alpha1.Bundle, error) {
	if u.offset > u.size {
		return nil, fmt.Errorf("content of bundle %q: the server has %d bytes of %d", u.name, u.offset, u.size)
	}
	n := min(u.chunk, u.size-u.offset)
	last := u.offset+n == u.size
	digest, err := u.digest(n)
	if err != nil {
		return nil, err
	}
	header := http.Header{
		"Content-Type": {"application/partial-upload"}, "Upload-Offset": {strconv.FormatInt(u.offset, 10)}, "Upload-Complete": {"?0"},
		"Content-Digest": {digest}, "Accept": {"application/json"},
	}
	if last {
		header.Set("Upload-Complete", "?1")
		header.Set("Repr-Digest", cmp.Or(u.repr, digestField(u.whole)))
	}
	begun := time.Now()
	response, err := u.do(ctx, http.MethodPatch, io.NewSectionReader(u.content, u.offset, n), n, header)
	if err != nil {
		u.chunk = max(u.chunk/2, minChunkSize)
		return nil, err
	}
	defer response.Body.Close()
	if !last {
		if n == u.chunk {
			took := max(time.Since(begun), time.Millisecond)
			next := int64(float64(n) * float64(chunkTime) / float64(took))
			// One lucky request says little.
			u.chunk = min(max(next, minChunkSize), maxChunkSize, 4*u.chunk)
		}
		return nil, nil
	}
	u.ended = true
	bundle := &v1alpha1.Bundle{}
	if err := json.NewDecoder(response.Body).Decode(bundle); err != nil {
		return nil, fmt.Errorf("content of bundle %q was written, but the answer cannot be read: %w", u.name, err)
	}
	if bundle.Name != u.name {
		return nil, fmt.Errorf("content of bundle %q: all was sent, and the answer (%s) is not that bundle: whether it was written is not known", u.name, response.Status)
	}
	return bundle, nil
}

// digest is that of the next n bytes. Those that are read for the first time go into that of the whole.
func (u *contentUpload) digest(n int64) (string, error) {
	sum := sha256.New()
	known := min(max(u.hashed-u.offset, 0), n)
	if _, err := io.Copy(sum, io.NewSectionReader(u.content, u.offset, known)); err != nil {
		return "", fmt.Errorf("read the content: %w", err)
	}
	fresh := io.NewSectionReader(u.content, u.offset+known, n-known)
	copied, err := io.Copy(io.MultiWriter(sum, u.whole), fresh)
	if err == nil && copied < n-known {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return "", fmt.Errorf("read the content: %w", err)
	}
	u.hashed += copied
	return digestField(sum), nil
}

func digestField(sum hash.Hash) string {
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum.Sum(nil)) + ":"
}

// do sends one request, and notes how many bytes the server has by its answer, error or not.
func (u *contentUpload) do(ctx context.Context, method string, body io.Reader, size int64, header http.Header) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	stalled := time.AfterFunc(stallTimeout, func() { cancel(errStalled) })
	done := func() { stalled.Stop(); cancel(nil) }
	below := []string{"uploads"}
	if u.id != "" {
		below = append(below, u.id)
	}
	request := u.GetClient().Verb(method).Namespace(u.GetNamespace()).Resource("bundles").Name(u.name).SubResource(below...)
	var sent io.Reader
	if size > 0 {
		sent = &watchedReader{body, stalled}
	}
	response, err := u.exchange(ctx, request, method, sent, size, header, u.name)
	if err != nil {
		done()
		return nil, err
	}
	if offset, err := strconv.ParseInt(response.Header.Get("Upload-Offset"), 10, 64); err == nil && offset >= 0 && u.id != "" {
		u.offset = offset
	}
	response.Body = &closer{response.Body, done}
	if response.StatusCode/100 == 2 {
		return response, nil
	}
	u.ended = u.ended || response.Header.Get("Upload-Complete") == "?1"
	err = statusError(response, method, u.name)
	if closed := response.Body.Close(); closed != nil {
		err = errors.Join(err, closed)
	}
	if u.resumed && hasCause(err, "AttemptEnded") || u.id != "" && hasCause(err, "UploadNotFound") || hasCause(err, "UploadLost") || u.id != "" && method == http.MethodHead && apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("content of bundle %q: %w: %w", u.name, errLost, err)
	}
	return nil, err
}

// abort tells the server to forget the upload. It would by itself, much later.
func (u *contentUpload) abort(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if response, err := u.do(ctx, http.MethodDelete, nil, 0, http.Header{}); err == nil {
		_ = response.Body.Close()
	}
}

// errStalled is why a request that gets no further is given up.
var errStalled = errors.New("no progress")

// watchedReader puts off the end of a request whenever it gets further.
type watchedReader struct {
	io.Reader
	stalled *time.Timer
}

func (w *watchedReader) Read(p []byte) (int, error) {
	w.stalled.Reset(stallTimeout)
	return w.Reader.Read(p)
}

// closer calls a function once a body is closed.
type closer struct {
	io.ReadCloser
	then func()
}

func (c *closer) Close() error {
	defer c.then()
	return c.ReadCloser.Close()
}

// retriable reports whether the same could succeed later.
func retriable(err error) bool {
	if _, ok := errors.AsType[*transportError](err); ok {
		return IsNoAnswer(err)
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || errors.Is(err, errLost) {
		return false
	}
	switch code := status.Status().Code; {
	case code == http.StatusTooManyRequests:
		return true
	case code == http.StatusRequestTimeout, hasCause(err, "MismatchingUploadOffset"), hasCause(err, "DigestMismatch"):
		return true
	default:
		return code >= http.StatusInternalServerError
	}
}

func hasCause(err error, cause metav1.CauseType) bool {
	return apierrors.HasStatusCause(err, cause)
}

// retryAfter is how long the server asks to wait.
func retryAfter(err error) time.Duration {
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return time.Duration(seconds) * time.Second
}
