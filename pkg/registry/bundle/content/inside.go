// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/listing"
	"rukpak.io/apiserver/pkg/tarball"
	"rukpak.io/apiserver/pkg/tarball/toc"
)

// formatTar asks for the tar in the archive.
const formatTar = "tar"

// insider is somebody who reads what is in a content.
type insider struct {
	r         *REST
	b         *rukpak.Bundle
	c         *rukpak.ContentStatus
	storeName string
	store     content.Store
	tar       bool
	path      string // in the form of an entry's name; "" is the root
	directory bool   // the path says that it is one
	recursive bool
	after     string // the list begins behind it
	size      int64  // of what is sent, once it is known
	base      string // the path of the request, without what is in path
	query     url.Values
}

// asksInside reports whether a request is for something in the content, and not for the archive.
func asksInside(o *rukpak.BundleContentOptions) bool {
	return o.Path != "" || o.Format != "" || o.Recursive || o.After != ""
}

// refuseInside answers what would write a part of a content, which is whole or not at all.
func refuseInside(w http.ResponseWriter, req *http.Request, responder rest.Responder) {
	w.Header().Set("Allow", strings.Join(Methods(true), ", "))
	err := apierrors.NewMethodNotSupported(rukpak.Resource("bundles/content"), "update of a part")
	Refuse(w, req, responder.Error, false, err)
}

// inside answers GET and HEAD of one file, of a list of files, or of the tar.
func (r *REST) inside(ctx context.Context, name string, o *rukpak.BundleContentOptions, w http.ResponseWriter, req *http.Request, responder rest.Responder) {
	i, err := newInsider(r, o, req)
	if err != nil {
		responder.Error(err)
		return
	}
	b, c, blob, err := r.find(ctx, name, o)
	if err != nil {
		responder.Error(err)
		return
	}
	i.b, i.c, i.storeName, i.store = b, c, blob.storeName, blob.store
	blob.close()

	out, err := i.attempt(ctx, w, req)
	if !out.began && spoiled(err) {
		if err = r.indexes.rebuild(ctx, i.store, c.Digest, err); err == nil {
			out, err = i.attempt(ctx, w, req)
		}
	}
	audit.AddAuditAnnotations(ctx, auditBundle, string(b.UID), auditDigest, c.Digest, auditBytes, strconv.FormatInt(out.written, 10))
	readBytes.Add(float64(out.written))
	switch {
	case err != nil:
		out.abort(responder, i.failure(ctx, out, err))
	case out.dropped:
		out.refuse(responder, i.size, i.refused(out.code))
	}
}

// attempt answers once, and reports what went wrong.
func (i *insider) attempt(ctx context.Context, w http.ResponseWriter, req *http.Request) (*sender, error) {
	out := newSender(ctx, w)
	err := i.answer(ctx, out, req)
	if err != nil && !out.began {
		// The answer is an error, or another attempt.
		out.dropped = true
	}
	if sendErr := out.finish(); err == nil && sendErr != nil {
		err = fmt.Errorf("%w: %w", errUnsent, sendErr)
	}
	return out, err
}

// errUnsent says that a reader did not take all of it.
var errUnsent = errors.New("the answer was not sent whole")

// failure looks into what went wrong, and returns what to tell the reader, if he can still be told.
func (i *insider) failure(ctx context.Context, out *sender, err error) error {
	if s, ok := err.(apierrors.APIStatus); ok {
		return s.(error)
	}
	log := klog.FromContext(ctx).WithValues("bundle", klog.KObj(i.b), "digest", i.c.Digest, "path", i.path)
	switch {
	case errors.Is(err, errUnsent), ctx.Err() != nil:
		log.V(4).Info("A part of content was not sent whole", "err", err)
	case errors.Is(err, errDamaged):
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rereadTimeout)
		defer cancel()
		return i.r.reread(ctx, i.b, i.c, i.storeName)
	case errors.Is(err, content.ErrNotFound):
		i.r.markLost(ctx, i.b, i.c, err)
		return lost(i.b, i.c.Digest)
	case spoiled(err) && out.began:
		log.Error(err, "A part of content was read wrong")
		go i.lookInto(context.WithoutCancel(ctx), err)
	default:
		log.Error(err, "A part of content cannot be read")
	}
	return unavailable("read the content", i.b, err)
}

// lookInto finds out whether the index or the bytes are damaged, and mends what can be mended.
func (i *insider) lookInto(ctx context.Context, cause error) {
	ctx, cancel := context.WithTimeout(ctx, rebuildTimeout)
	defer cancel()
	if err := i.r.indexes.rebuild(ctx, i.store, i.c.Digest, cause); errors.Is(err, errDamaged) {
		// It is logged where it is found out, and the reader is gone.
		_ = i.r.reread(ctx, i.b, i.c, i.storeName)
	}
}

// refused is an answer of net/http to the conditions or the range of a request, in the form of the API.
func (i *insider) refused(code int) error {
	switch code {
	case http.StatusPreconditionFailed:
		return preconditionFailed(i.b, i.title()+" is another one by now")
	case http.StatusRequestedRangeNotSatisfiable:
		return status(i.b, int32(code), "RangeNotSatisfiable", fmt.Sprintf("header Range: there is no such part of the %d bytes of %s", i.size, i.title()))
	}
	return status(i.b, int32(code), metav1.StatusReasonUnknown, http.StatusText(code))
}

// title is what somebody reads, for people.
func (i *insider) title() string {
	switch {
	case i.tar:
		return "the tar of the content"
	case i.path == "":
		return "the list of the content"
	}
	return strconv.Quote(i.path)
}

// spoiled reports whether an index and an archive do not go together.
func spoiled(err error) bool {
	return errors.Is(err, toc.ErrDamaged) || errors.Is(err, toc.ErrMismatch)
}

// newInsider reads what a request asks for.
func newInsider(r *REST, o *rukpak.BundleContentOptions, req *http.Request) (*insider, error) {
	i := &insider{r: r, tar: o.Format != "", recursive: o.Recursive, after: o.After, query: req.URL.Query()}
	switch {
	case o.Format != "" && o.Format != formatTar:
		return nil, badRequest("query parameter format: %q is not known; there is %q, and the archive as it is stored without one", o.Format, formatTar)
	case i.tar && (o.Path != "" || o.Recursive || o.After != ""):
		return nil, badRequest("query parameter format: it is for the whole content, not for a path in it")
	case o.Recursive && o.Path == "":
		return nil, badRequest("query parameter recursive: it is for the list of a directory; that of the root is at content/")
	case o.After != "" && o.Path == "":
		return nil, badRequest("query parameter after: it is for the list of a directory; that of the root is at content/")
	}
	// The parser of options drops some of them.
	if strings.Contains(req.URL.Path, "//") {
		return nil, badRequest("path %q: the component \"\" cannot be in it", req.URL.Path)
	}
	i.path, i.directory = strings.TrimPrefix(o.Path, "/"), strings.HasSuffix(o.Path, "/")
	if i.path == "" {
		return i, nil
	}
	i.base = strings.TrimSuffix(req.URL.Path, i.path)
	if i.directory {
		i.path = i.path[:len(i.path)-1]
	}
	for part := range strings.SplitSeq(i.path, "/") {
		if part == "." || part == ".." {
			return nil, badRequest("path %q: the component %q cannot be in it", i.path, part)
		}
		if len(part) > tarball.MaxComponentLength {
			return nil, badRequest("path: the component %.40q cannot be in it: it has %d bytes, and a name has %d at most", part, len(part), tarball.MaxComponentLength)
		}
	}
	return i, nil
}

// answer sends what is asked for. An error that comes before anything was sent is for the reader.
func (i *insider) answer(ctx context.Context, out *sender, req *http.Request) error {
	limited, cancel := context.WithTimeout(ctx, rebuildPatience+lookupTimeout)
	defer cancel()
	index, err := i.r.indexes.open(limited, i.store, i.c.Digest)
	if err != nil {
		return err
	}
	h := out.Header()
	// A browser that is led here runs nothing of what it gets.
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	if i.tar {
		return i.sendPart(ctx, out, req, index, part{mediaType: tarType, digest: index.TarDigest(), size: index.TarSize()})
	}
	entry, err := index.Resolve(limited, i.path)
	if err != nil {
		return i.noEntry(err)
	}
	if entry.Name != i.path {
		h.Set("Content-Location", i.location(entry))
	}
	if entry.Type == tarball.TypeDirectory {
		return i.sendList(ctx, out, req, index, entry)
	}
	switch {
	case i.directory:
		return i.noEntry(fmt.Errorf("%q: %w", entry.Name, toc.ErrNotDirectory))
	case i.recursive:
		return badRequest("query parameter recursive: %q is no directory", i.path)
	case i.after != "":
		return badRequest("query parameter after: %q is no directory", i.path)
	}
	return i.sendPart(ctx, out, req, index, part{mediaType: mediaTypeOf(entry.Name), digest: entry.DigestString(), offset: entry.Offset, size: entry.Size})
}

// part is a part of the tar that is sent as something of its own.
type part struct {
	mediaType    string
	digest       string
	offset, size int64
}

func (i *insider) sendPart(ctx context.Context, out *sender, req *http.Request, index *toc.Index, p part) error {
	body, err := index.Read(ctx, blobOpener(i.store, i.c.Digest), p.offset, p.size)
	if err != nil {
		return err
	}
	h := out.Header()
	h.Set("Content-Type", p.mediaType)
	h.Set("ETag", etag(p.digest))
	h.Set("Repr-Digest", reprDigest(p.digest))
	i.size = p.size
	serve(out, req, p.size, i.c.UpdateTime.Time, body)
	// A reader has nothing to lose by a failed close.
	_ = body.Close()
	return body.Err()
}

// sendList sends the list of a directory. Its form may be another one in another version of the server, so its tag is weak.
func (i *insider) sendList(ctx context.Context, out *sender, req *http.Request, index *toc.Index, dir *toc.Entry) error {
	h := out.Header()
	h.Set("Content-Type", listing.MediaType)
	h.Set("ETag", "W/"+etag(i.c.Digest))
	h.Set("Last-Modified", i.c.UpdateTime.UTC().Format(http.TimeFormat))
	h.Set("Vary", "Accept-Encoding")
	switch judge(req, h.Get("ETag"), i.c.UpdateTime.Time) {
	case http.StatusNotModified:
		h.Del("Content-Type")
		out.WriteHeader(http.StatusNotModified)
		return nil
	case http.StatusPreconditionFailed:
		return preconditionFailed(i.b, i.title()+" is another one by now, or If-Match names its tag, which is weak and never matches there")
	}
	if req.Method == http.MethodHead {
		return nil
	}
	err := i.writeList(ctx, &compressor{compression: compressionOf(req.Header), out: out}, index, dir)
	if out.err != nil {
		// The reader went away, which finish tells.
		return nil
	}
	return err
}

// writeList writes a list, and what there is of one that is long in coming.
func (i *insider) writeList(ctx context.Context, out *compressor, index *toc.Index, dir *toc.Entry) error {
	defer out.release()
	buffered := bufio.NewWriterSize(out, listBuffer)
	list := listing.NewWriter(buffered, dir.Name)
	prefix := len(dir.Name)
	if prefix > 0 {
		prefix++
	}
	flushed := time.Now()
	err := index.List(ctx, dir.Name, i.after, i.recursive, func(e *toc.Entry) error {
		if err := list.Add(listed(e, e.Name[prefix:])); err != nil || time.Since(flushed) < listPause {
			return err
		}
		out.long, flushed = true, time.Now()
		if err := buffered.Flush(); err != nil {
			return err
		}
		return out.flush()
	})
	if err == nil {
		err = list.Close()
	}
	if err == nil {
		err = buffered.Flush()
	}
	if err == nil {
		err = out.end()
	}
	return err
}

// listed is an entry in a list.
func listed(e *toc.Entry, name string) listing.Entry {
	l := listing.Entry{Name: name, Type: listing.File, Mode: fmt.Sprintf("%04o", e.Mode), Size: e.Size, Digest: e.DigestString(), LinkTarget: e.Linkname}
	switch e.Type {
	case tarball.TypeDirectory:
		l.Type = listing.Directory
	case tarball.TypeSymlink:
		l.Type = listing.SymbolicLink
	}
	return l
}

// location is where what a symbolic link leads to is read by its own path.
func (i *insider) location(e *toc.Entry) string {
	u := url.URL{Path: i.base + e.Name, RawQuery: i.query.Encode()}
	return u.String()
}

// noEntry says why there is nothing at the path, and passes on what is another error.
func (i *insider) noEntry(err error) error {
	cause := metav1.StatusCause{Type: v1alpha1.CauseFileNotFound, Message: err.Error(), Field: i.path}
	switch {
	case errors.Is(err, toc.ErrLoop):
		cause.Type = v1alpha1.CauseLinkLoop
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, toc.ErrNotDirectory):
		return err
	}
	message := fmt.Sprintf("content %s has no %q: %v", i.c.Digest, i.path, err)
	return status(i.b, http.StatusNotFound, metav1.StatusReasonNotFound, message, cause)
}
