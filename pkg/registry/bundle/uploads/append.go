// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package uploads

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/reference"
	"rukpak.io/apiserver/pkg/content/upload"
	"rukpak.io/apiserver/pkg/failpoint"
	subresource "rukpak.io/apiserver/pkg/registry/bundle/content"
)

// patch answers PATCH: the body is appended, and may be the end of the upload.
func (r *REST) patch(c *call) error {
	f, err := parseFields(c.req.Header)
	if err != nil {
		return err
	}
	if err := checkPatch(c, f); err != nil {
		return err
	}
	body := r.newBody(c.w, c.req)
	c.body = body
	end, err := r.begin(c, body)
	if err != nil {
		return err
	}
	defer end()
	b, s, err := r.find(c)
	if err != nil {
		return err
	}
	r.describe(c.w.Header(), s, s.MaxBytes)
	if s.Outcome != nil {
		return r.repeat(c, b, s, f)
	}
	if f.offset != s.Offset() {
		return mismatch(c, f.offset, s.Offset())
	}
	if err := r.mayWrite(c); err != nil {
		return err
	}
	if f.complete && c.req.ContentLength == 0 && isCommitted(b, s) {
		end()
		return r.complete(c, s)
	}
	if _, err := r.target(c, b, s); err != nil {
		return err
	}
	if err := setWhole(c, s, f); err != nil {
		return err
	}
	err = r.receive(c, b, s, body, f)
	r.describe(c.w.Header(), s, s.MaxBytes)
	if err != nil {
		r.Content.NoteFull(c.ctx, b, err)
		return err
	}
	if f.complete {
		// Whoever asks for the offset from here on need not wait.
		end()
		return r.complete(c, s)
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// checkPatch refuses a request that does not say what it has to.
func checkPatch(c *call, f fields) error {
	h := c.req.Header
	switch {
	case !isPartial(h):
		c.w.Header().Set("Accept-Patch", partialUpload)
		return apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, c.req.Method, rukpak.Resource("bundles/uploads"), c.name,
			fmt.Sprintf("header Content-Type: a part of an upload is %s, not %.100q", partialUpload, h.Get("Content-Type")), 0, true)
	case f.offset == none:
		return badRequest("header %s: it has to say, as an integer, where the body begins", fieldOffset)
	case !f.said:
		return badRequest("header %s: it has to be ?1 if the body ends the upload, else ?0", fieldComplete)
	}
	for _, field := range []string{"If-Match", "If-None-Match", "If-Unmodified-Since", "Content-Encoding", "Content-Range"} {
		if h.Get(field) != "" {
			return badRequest("header %s: it is no part of a request that appends: conditions are set when the upload is created", field)
		}
	}
	return nil
}

// setWhole notes what a request tells of the whole upload: its length, and its digest.
func setWhole(c *call, s *upload.Session, f fields) error {
	if said := lines(c.req.Header, "Repr-Digest"); said != "" {
		if s.ReprDigest != "" && s.ReprDigest != said {
			return badRequest("header Repr-Digest: it was another when the upload was created: %s", s.ReprDigest)
		}
		s.ReprDigest = said
	}
	return setLength(c, s, f)
}

// setLength notes the length that a request tells of, and checks it against what is known.
func setLength(c *call, s *upload.Session, f fields) error {
	lengths := []int64{f.length}
	if f.complete && c.req.ContentLength >= 0 {
		lengths = append(lengths, s.Offset()+c.req.ContentLength)
	}
	for _, length := range lengths {
		switch {
		case length == none:
			continue
		case s.Length != upload.UnknownLength && s.Length != length:
			return inconsistent(c, "it has %d bytes by this request, and had %d by one before", length, s.Length)
		case length < s.Offset():
			return inconsistent(c, "it has %d bytes by this request, and more have come: %d", length, s.Offset())
		case s.MaxBytes > 0 && length > s.MaxBytes:
			return tooLarge(c, s.MaxBytes)
		}
		s.Length = length
	}
	return nil
}

// roomInterval is after how many bytes a body asks again whether there is room for more.
const roomInterval = 16 << 20

// receive appends the body to the session, which is the new one when it returns. Of a body that breaks off the
// beginning is kept; the error says so.
func (r *REST) receive(c *call, b *rukpak.Bundle, s *upload.Session, in *body, f fields) error {
	if c.req.ContentLength == 0 {
		return r.keepLength(c, s, f)
	}
	bound, err := r.bound(c, b, s)
	if err != nil {
		return err
	}
	if err := bound.check(max(s.Offset(), s.Offset()+c.req.ContentLength)); err != nil {
		return err
	}
	leave, err := r.enter(c)
	if err != nil {
		return err
	}
	defer leave()
	// The bytes count even if the client is gone when they are here; the body ends by itself then.
	ctx := content.ForTenant(context.WithoutCancel(c.ctx), b.Namespace)
	store := r.Stores[s.Store]
	writer, err := store.Create(ctx)
	if err != nil {
		return storeFailed(c, err)
	}
	defer func() {
		if err := writer.Abort(); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot drop a part of an upload", "upload", s.ID)
		}
	}()
	grown := s.Grown()
	if grown != nil {
		if err := copyPart(ctx, writer, store, *grown); errors.Is(err, errLost) {
			return r.lost(c, s, err)
		} else if err != nil {
			return storeFailed(c, err)
		}
	}
	before := writer.Size()
	var sum hash.Hash
	from := io.Reader(in)
	if f.digest != nil {
		sum = sha256.New()
		from = io.TeeReader(in, sum)
	}
	if bound.most != none {
		from = io.LimitReader(from, bound.most-s.Offset()+1)
	}
	if err := fill(ctx, writer, from, store, func() error { return r.touch(ctx, s) }); err != nil && in.err == nil {
		return storeFailed(c, err)
	}
	n := writer.Size() - before
	if err := bound.check(s.Offset() + n); err != nil {
		return err
	}
	switch {
	case n == 0 && in.err != nil:
		return brokenOff(c, in)
	case n == 0:
		return r.keepLength(c, s, f)
	case in.err == nil && sum != nil && !bytes.Equal(sum.Sum(nil), f.digest):
		return c.status(http.StatusBadRequest, metav1.StatusReasonBadRequest, CauseDigestMismatch,
			"header Content-Digest: the body has the sha-256 digest %x, not %x", sum.Sum(nil), f.digest)
	}
	if err := r.keep(c, s, writer, grown != nil); err != nil {
		return err
	}
	received.Add(float64(n))
	audit.AddAuditAnnotations(c.ctx, auditOffset, strconv.FormatInt(s.Offset(), 10), auditBytes, strconv.FormatInt(n, 10))
	if in.err != nil {
		return brokenOff(c, in)
	}
	return nil
}

// bound is how many bytes an upload may have.
type bound struct {
	most   int64 // none means any number
	refuse func(size int64) error
}

// check returns what an upload of so many bytes is answered with, nil if it may have them.
func (b bound) check(size int64) error {
	if b.most == none || size <= b.most {
		return nil
	}
	return b.refuse(size)
}

// bound finds out what bounds an upload most: the length that it was said to have, its class, or what the namespace may have.
func (r *REST) bound(c *call, b *rukpak.Bundle, s *upload.Session) (bound, error) {
	found := bound{none, func(int64) error { return beyond(c, s) }}
	if s.Length != upload.UnknownLength {
		found.most = s.Length
	} else if s.MaxBytes > 0 {
		found.most = s.MaxBytes
	}
	budget, err := r.Content.Budget(c.ctx, b, s.ID)
	if err != nil {
		return found, err
	}
	if left, limited := budget.Left(); limited && (found.most == none || left < found.most) {
		found = bound{left, budget.Check}
	}
	return found, nil
}

// beyond says that more bytes come than may.
func beyond(c *call, s *upload.Session) error {
	if s.Length != upload.UnknownLength {
		return inconsistent(c, "more bytes come than the %d that it has", s.Length)
	}
	return tooLarge(c, s.MaxBytes)
}

// brokenOff says that the body ended early. Nothing is wrong with it for all that is known, so it is no 400.
func brokenOff(c *call, in *body) error {
	return c.status(http.StatusRequestTimeout, "RequestTimeout", "RequestTimeout", "the body ended early, after %d bytes: %v", in.Bytes, subresource.WithoutAddresses(in.err))
}

// keepLength writes down the length that a request without a body has told of.
func (r *REST) keepLength(c *call, s *upload.Session, f fields) error {
	if f.length == none || f.complete {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.ctx, lookupTimeout)
	defer cancel()
	if err := r.Sessions.Update(ctx, s); err != nil {
		return sessionFailed(c, err)
	}
	return nil
}

// enter takes a place among the parts that are received at the same time, and asks the caller to come again where
// there is none.
func (r *REST) enter(c *call) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(c.ctx, r.PlaceTimeout)
	defer cancel()
	leave, err = r.places.Take(ctx, c.namespace)
	if err != nil {
		return nil, tooManyParts()
	}
	return leave, nil
}

// fill copies to the writer while there is room for more.
func fill(ctx context.Context, writer content.Writer, from io.Reader, store content.Store, touch func() error) error {
	for {
		if err := touch(); err != nil {
			return err
		}
		if err := store.Room(ctx); err != nil {
			return err
		}
		if _, err := io.CopyN(writer, from, roomInterval); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// touchInterval is how often a session is renewed while a long part comes, so that it does not expire meanwhile.
const touchInterval = 10 * time.Minute

func (r *REST) touch(ctx context.Context, s *upload.Session) error {
	if r.Now().Sub(s.Touched) < touchInterval {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	return r.Sessions.Update(ctx, s)
}

// copyPart writes a part once more.
func copyPart(ctx context.Context, writer content.Writer, store content.Store, p upload.Part) error {
	from := newParts(ctx, store, []upload.Part{p})
	_, err := io.Copy(writer, from)
	return errors.Join(err, from.Close())
}

// keep makes what the writer has the session's last part: see package upload for the order.
func (r *REST) keep(c *call, s *upload.Session, writer content.Writer, grown bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), r.CommitTimeout)
	defer cancel()
	part := upload.Part{Digest: writer.Digest(), Size: writer.Size(), Nonce: upload.NewNonce()}
	if err := r.References.Add(ctx, s.Ref(part), s.Namespace, s.Bundle); err != nil {
		return unavailable(c, "record the bytes", err)
	}
	failpoint.Hit("upload/after-reference")
	if err := reference.Commit(ctx, r.References, s.Store, r.Stores[s.Store], writer, part.Digest); err != nil {
		r.release(ctx, s, part)
		return storeFailed(c, err)
	}
	failpoint.Hit("upload/after-blob")
	next := s.With(part, grown)
	err := r.Sessions.Update(ctx, &next)
	if errors.Is(err, upload.ErrChanged) {
		r.release(ctx, s, part)
		return r.lostRace(ctx, c, s)
	}
	if err != nil {
		// It may have been written: the part stays until that is known.
		return sessionFailed(c, err)
	}
	failpoint.Hit("upload/after-session")
	if grown {
		r.release(ctx, s, s.Parts[len(s.Parts)-1])
	}
	*s = next
	return nil
}

// lostRace says where the session is, after another replica has changed it.
func (r *REST) lostRace(ctx context.Context, c *call, s *upload.Session) error {
	fresh, err := r.Sessions.Get(ctx, s.Key)
	if err != nil {
		return sessionFailed(c, err)
	}
	offset := s.Offset()
	*s, c.lost = *fresh, true
	return mismatch(c, offset, s.Offset())
}
