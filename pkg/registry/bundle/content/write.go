// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/reference"
	"rukpak.io/apiserver/pkg/failpoint"
	"rukpak.io/apiserver/pkg/provisioner"
	"rukpak.io/apiserver/pkg/tarball"
)

// put answers PUT: the body becomes the content of the bundle's current generation.
func (r *REST) put(ctx context.Context, name string, o *rukpak.BundleContentOptions, w http.ResponseWriter, req *http.Request, responder rest.Responder) {
	body := newPacedReader(w, req.Body)
	body.Wanted = r.uploads.Waiting
	var b *rukpak.Bundle
	var code int
	t, err := r.target(ctx, name, o, req)
	if err == nil {
		b, code, err = r.write(ctx, t, body, req)
	}
	if err != nil {
		countFailure(err)
		Refuse(w, req, responder.Error, body.begun(), err)
		return
	}
	SetDigest(w.Header(), b.Status.Content.Digest)
	responder.Object(code, b)
}

// write takes a body from its first byte to the commit. It returns the bundle as it is then, and
// 201 where there was no content before, else 200.
func (r *REST) write(ctx context.Context, t *Target, body *pacedReader, req *http.Request) (_ *rukpak.Bundle, code int, err error) {
	b, class, g, store := t.Bundle, t.class, t.grant, t.Store
	ctx = content.ForTenant(ctx, b.Namespace)
	defer func() { r.NoteFull(ctx, b, err) }()
	times := r.measure(b, g, req, body)
	defer func() { times.end(err) }()
	done, err := r.admit(ctx, b, g, store)
	if err != nil {
		return nil, 0, err
	}
	defer done()
	body.Slowest = SlowestUpload
	if g.canonical {
		body.Wanted = nil // its places are not those of uploads, and its rate is that of the node
	}
	limits := limitsOf(class)
	check, err := newCheck(class, g.builtIn)
	if err != nil {
		return nil, 0, conflict(b, "ClassInvalid", fmt.Sprintf("its class %q: %v", class.Name, err))
	}

	budget, err := r.Budget(ctx, b, g.upload)
	if err != nil {
		return nil, 0, err
	}
	writer, err := store.Create(ctx)
	if err != nil {
		return nil, 0, failed(b, err)
	}
	defer func() {
		if err := writer.Abort(); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot drop an upload that came to nothing", "bundle", klog.KObj(b))
		}
	}()
	indexing := r.indexes.newIndexingWriter(ctx, store, newSealingWriter(budget.bound(writer), r.seals))
	defer indexing.drop(ctx)
	in := &roomyReader{from: body, room: func() error { return store.Room(ctx) }}
	summary, err := r.receive(ctx, b, g, req, body, in, &storeWriter{Writer: indexing}, indexing.indexer(), limits, check)
	if err != nil {
		return nil, 0, err
	}
	indexing.summary = summary
	ctx = times.received(ctx)
	if t.committing != nil {
		if err := t.committing(ctx, summary.Digest); err != nil {
			return nil, 0, err
		}
	}
	failpoint.Hit("content/after-upload")
	// The bytes are all here: whether they count does not depend on the client waiting for the answer.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.CommitTimeout)
	defer cancel()
	unlock, err := r.lockCommit(ctx, b.UID)
	if err != nil {
		return nil, 0, unavailable("commit the content", b, err)
	}
	defer unlock()
	ref := reference.Ref{Store: class.Store, Digest: summary.Digest, BundleUID: string(b.UID)}
	return r.commit(ctx, b, class, g, ref, indexing, summary, times)
}

// admit takes a place among the writes that may run at the same time, if there is one, and room in the store.
func (r *REST) admit(ctx context.Context, b *rukpak.Bundle, g *grant, store content.Store) (done func(), err error) {
	if err := store.Room(ctx); err != nil {
		return nil, failed(b, err)
	}
	set := r.uploads
	if g.canonical {
		set = r.attempts
	}
	ctx, cancel := context.WithTimeout(ctx, r.PlaceTimeout)
	defer cancel()
	done, err = set.Take(ctx, b.Namespace)
	if err != nil {
		return nil, tooManyWrites()
	}
	return done, nil
}

// busyRetrySeconds is when to try again after the server was busy.
const busyRetrySeconds = 2

// receive streams the body into the store, and checks every byte of it on the way.
func (r *REST) receive(ctx context.Context, b *rukpak.Bundle, g *grant, req *http.Request, body *pacedReader, in io.Reader, writer *storeWriter, index tarball.Indexer, limits tarball.Limits, check provisioner.Check) (tarball.Summary, error) {
	var (
		field   string
		expect  []byte
		sum     hash.Hash
		summary tarball.Summary
		err     error
	)
	if field, expect, err = bodyDigest(req.Header); err != nil {
		return summary, badRequest("header %s: %v", field, err)
	}
	if expect != nil {
		sum = sha256.New()
		in = io.TeeReader(in, sum)
	}
	options := tarball.Options{Limits: limits, Scratch: r.Scratch, Visit: check.Visit, Index: index, Digest: writer.Digest}
	if g.canonical {
		summary, err = tarball.VerifyIndexed(ctx, io.TeeReader(in, writer), options)
	} else {
		summary, err = tarball.Canonicalize(ctx, writer, in, options)
	}
	switch {
	case body.err != nil:
		return summary, brokenOff(b, body)
	case writer.err != nil:
		return summary, failed(b, writer.err)
	case err != nil:
		if e := refused(b, err); e != nil {
			return summary, e
		}
		return summary, failed(b, err)
	}
	if err := check.Finish(); err != nil {
		return summary, refused(b, err)
	}
	if expect != nil {
		// What follows the archive in the body counts too.
		if _, err := io.Copy(io.Discard, in); err != nil {
			return summary, brokenOff(b, body)
		}
		if got := sum.Sum(nil); string(got) != string(expect) {
			return summary, badRequest("header %s: the body has the sha-256 digest %x, not %x", field, got, expect)
		}
	}
	if want := wantedDigest(b); want != "" && want != summary.Digest {
		return summary, status(b, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
			fmt.Sprintf("spec.source.upload.digest is %s, but the content is %s", want, summary.Digest),
			metav1.StatusCause{Type: CauseContentRefused, Field: "spec.source.upload.digest", Message: "the content is " + summary.Digest})
	}
	return summary, nil
}

// commit makes the bytes the bundle's content: first the record that the bundle has them, then the
// bytes themselves, then the status that names them. A crash in between leaves the old content, and a record
// and bytes that the collector finds. The caller bounds ctx.
func (r *REST) commit(ctx context.Context, b *rukpak.Bundle, class *rukpak.ProvisionerClass, g *grant, ref reference.Ref, writer content.Writer, summary tarball.Summary, times *stageTimes) (*rukpak.Bundle, int, error) {
	resolved, err := r.resolve(ctx, b, g)
	if err != nil {
		return nil, 0, unavailable("find out which image was unpacked", b, err)
	}
	// Asked before anything is stored, so that a write that comes too late costs little.
	fresh, err := r.Bundles.Get(ctx, b.Name)
	if err != nil {
		return nil, 0, Late(ctx, "read the bundle", b.Name, err)
	}
	if err := g.check(fresh); err != nil {
		return nil, 0, err
	}
	if err := r.checkQuota(ctx, fresh, g.upload, func(b *rukpak.Bundle) error {
		_, err := g.apply(b, class, summary, resolved, r.Now())
		return err
	}); err != nil {
		return nil, 0, err
	}
	if err := r.References.Add(ctx, ref, b.Namespace, b.Name); err != nil {
		return nil, 0, unavailable("record the content", b, err)
	}
	failpoint.Hit("content/after-reference")
	if err := reference.Commit(ctx, r.References, ref.Store, r.Stores[ref.Store], writer, summary.Digest); err != nil {
		return nil, 0, failed(b, err)
	}
	failpoint.Hit("content/after-blob")
	code, result := http.StatusOK, "committed"
	var dropped []string
	times.committing()
	committed, err := r.Bundles.Commit(ctx, b.Name, func(now *rukpak.Bundle) error {
		if err := g.check(now); err != nil {
			return err
		}
		code, result = http.StatusOK, "committed"
		if now.Status.Content == nil {
			code = http.StatusCreated
		}
		before := digestsOfStatus(&now.Status)
		changed, err := g.apply(now, class, summary, resolved, r.Now())
		dropped = without(before, digestsOfStatus(&now.Status))
		if !changed {
			result = "unchanged"
		}
		return err
	})
	if err != nil {
		return nil, 0, Late(ctx, "write the content into the status", b.Name, err)
	}
	failpoint.Hit("content/after-status")
	r.replaced(ctx, b, dropped)
	writes.WithLabelValues(result).Inc()
	writtenBytes.Add(float64(summary.Size))
	audit.AddAuditAnnotations(ctx, auditBundle, string(b.UID), auditDigest, summary.Digest, auditBytes, strconv.FormatInt(summary.Size, 10))
	klog.FromContext(ctx).Info("Committed content", "bundle", klog.KObj(b), "digest", summary.Digest, "size", summary.Size, "generation", g.generation, "result", result)
	return committed, code, nil
}

// resolve finds out what the content was taken from.
func (r *REST) resolve(ctx context.Context, b *rukpak.Bundle, g *grant) (*rukpak.ResolvedSource, error) {
	if !g.attempt {
		s := &rukpak.ResolvedSource{Type: b.Spec.Source.Type}
		if s.Type == rukpak.SourceTypeUpload {
			s.Upload = &rukpak.ResolvedUpload{Username: g.username}
		}
		return s, nil
	}
	reference, err := r.Resolve(ctx, b)
	if err != nil {
		return nil, err
	}
	image := &rukpak.ResolvedImage{Reference: reference, Platform: b.Status.Unpack.Platform}
	if reference == "" {
		image.Message = "the node has not said which image it took"
	}
	return &rukpak.ResolvedSource{Type: rukpak.SourceTypeImage, Image: image}, nil
}

func wantedDigest(b *rukpak.Bundle) string {
	if u := b.Spec.Source.Upload; u != nil {
		return u.Digest
	}
	return ""
}

func limitsOf(class *rukpak.ProvisionerClass) tarball.Limits {
	var l tarball.Limits
	if c := class.Limits; c != nil {
		if c.CompressedBytes != nil {
			l.CompressedBytes = c.CompressedBytes.Value()
		}
		if c.Bytes != nil {
			l.Bytes = c.Bytes.Value()
		}
		if c.Files != nil {
			l.Files = *c.Files
		}
	}
	return l
}

// newCheck returns the provisioner's look at the content. Somebody else's provisioner takes its own.
func newCheck(class *rukpak.ProvisionerClass, builtIn bool) (provisioner.Check, error) {
	if builtIn {
		return provisioner.New(class.Provisioner, class.Parameters)
	}
	return provisioner.New(v1alpha1.ProvisionerRaw, nil)
}

// checkHeaders refuses what can be seen to be wrong before a byte of the body is read.
func checkHeaders(b *rukpak.Bundle, req *http.Request, limits tarball.Limits) error {
	// There may be several codings, in one field or in several (RFC 9110, section 8.4).
	for coding := range strings.SplitSeq(strings.Join(req.Header.Values("Content-Encoding"), ","), ",") {
		if coding = strings.TrimSpace(coding); coding != "" && !strings.EqualFold(coding, "identity") {
			return status(b, http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
				fmt.Sprintf("header Content-Encoding: %q is not supported: a compressed archive is sent as such, without a coding", coding))
		}
	}
	if req.Header.Get("Content-Range") != "" {
		return badRequest("header Content-Range: a part of the content cannot be written (RFC 9110, section 14.5)")
	}
	// With If-Match it does not count (RFC 9110, section 13.1.4). Alone it would let some updates be lost without a word: two
	// writes within a second have the same date, and that of a replica whose clock is behind is no later than the one before.
	if req.Header.Get("If-Unmodified-Since") != "" && req.Header.Get("If-Match") == "" {
		return badRequest("header If-Unmodified-Since: a date cannot tell every write from the one before it: send If-Match, with the ETag, instead")
	}
	if most := maxBody(limits); most > 0 && req.ContentLength > most {
		message := fmt.Sprintf("the body has %d bytes; its class allows %d", req.ContentLength, most)
		return status(b, http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, message,
			metav1.StatusCause{Type: CauseLimitExceeded, Message: message})
	}
	return nil
}

// maxBody is the greatest size of a body, or 0 for any. An uncompressed archive may be as large as it is allowed to
// be; nothing may be larger.
func maxBody(limits tarball.Limits) int64 {
	if limits.CompressedBytes <= 0 || limits.Bytes <= 0 {
		return 0
	}
	return max(limits.CompressedBytes, limits.Bytes)
}

// bodyDigest returns the sha-256 that a request says its body has, and the header field that says so. They
// are the same where nothing is coded and no part is sent (RFC 9530, sections 2 and 3), as here.
func bodyDigest(header http.Header) (field string, sum []byte, err error) {
	for _, field := range []string{"Content-Digest", "Repr-Digest"} {
		if sum, err := DigestField(header.Values(field)); sum != nil || err != nil {
			return field, sum, err
		}
	}
	return "", nil, nil
}

// DigestField returns the sha-256 of the lines of a header field Content-Digest or Repr-Digest (RFC 9530), nil where there is none.
func DigestField(values []string) ([]byte, error) {
	for item := range strings.SplitSeq(strings.Join(values, ","), ",") {
		key, value, ok := strings.Cut(strings.TrimSpace(item), "=")
		if !ok || key != "sha-256" {
			continue
		}
		if len(value) < 2 || value[0] != ':' || value[len(value)-1] != ':' {
			return nil, fmt.Errorf("%.100q is not a byte sequence", value)
		}
		raw, err := base64.StdEncoding.DecodeString(value[1 : len(value)-1])
		if err != nil || len(raw) != sha256.Size {
			return nil, fmt.Errorf("%.100q is not a sha-256 digest", value)
		}
		return raw, nil
	}
	return nil, nil
}
