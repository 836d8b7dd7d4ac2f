// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/content"
)

// A namespace's share is counted from what its bundles name, current and earlier contents alike. The same bytes of two
// bundles count twice: a bundle that is deleted gives back what it had, and nobody learns from his share what
// others have. The bytes of uploads that are under way count too: they are stored. Two commits, or parts, at the same time may
// together go beyond the bound, by one content or part for each but the first.

// quotaError says that the bundles of a namespace would have more content than they may.
type quotaError struct {
	namespace          string
	used, wanted, most int64 // bytes: of the other bundles, of this one, of all
}

func (e *quotaError) Error() string {
	return fmt.Sprintf("exceeded quota: the other bundles and uploads of namespace %q have %d bytes of content, this one would have %d or more, and %d are allowed: "+
		"delete bundles, complete or delete uploads, keep less history, or have --max-content-bytes-per-namespace raised", e.namespace, e.used, e.wanted, e.most)
}

// status is what Kubernetes answers where a ResourceQuota is exceeded: 403. The server has room, this caller has none; and
// clients do not try that again by themselves, as they would with 429 or 5xx.
func (e *quotaError) status(b *rukpak.Bundle) error {
	return status(b, http.StatusForbidden, metav1.StatusReasonForbidden, e.Error(), metav1.StatusCause{Type: CauseContentQuotaExceeded, Message: e.Error()})
}

// Budget is what a write of a bundle's content may bring.
type Budget struct {
	bundle  *rukpak.Bundle
	limited bool
	left    int64
	exceeds quotaError
}

// Left is how many bytes that is, and whether there is a bound at all.
func (b *Budget) Left() (n int64, limited bool) { return b.left, b.limited }

// Check returns what a write of so many bytes is to be answered with, nil if it may bring them.
func (b *Budget) Check(size int64) error {
	if !b.limited || size <= b.left {
		return nil
	}
	exceeds := b.exceeds
	exceeds.wanted = size
	return exceeds.status(b.bundle)
}

// Budget finds out how much new content a bundle may get, and refuses where that is nothing. The bytes of the upload
// of an ID are part of what it may get; "" is none.
func (r *REST) Budget(ctx context.Context, b *rukpak.Bundle, upload string) (*Budget, error) {
	if r.MaxBytesPerNamespace <= 0 {
		return &Budget{}, nil
	}
	others, err := r.bytesOfOthers(ctx, b, upload)
	if err != nil {
		return nil, err
	}
	own := Bytes(&b.Status)
	found := &Budget{
		bundle: b, limited: true,
		// What does not add to what it has is never refused.
		left:    max(r.MaxBytesPerNamespace-others, own),
		exceeds: quotaError{namespace: b.Namespace, used: others, wanted: own, most: r.MaxBytesPerNamespace},
	}
	if found.left <= 0 {
		return nil, found.exceeds.status(b)
	}
	return found, nil
}

// bound makes a writer fail that is given more.
func (b *Budget) bound(w content.Writer) content.Writer {
	if !b.limited {
		return w
	}
	return &boundWriter{w, b}
}

type boundWriter struct {
	content.Writer
	budget *Budget
}

func (w *boundWriter) Write(p []byte) (int, error) {
	if size := w.Size() + int64(len(p)); size > w.budget.left {
		exceeds := w.budget.exceeds
		exceeds.wanted = size
		return 0, &exceeds
	}
	return w.Writer.Write(p)
}

// checkQuota asks, right before a commit, whether what the bundle will name then is allowed. What it names less than
// before is, in any case.
func (r *REST) checkQuota(ctx context.Context, b *rukpak.Bundle, upload string, apply func(*rukpak.Bundle) error) error {
	if r.MaxBytesPerNamespace <= 0 {
		return nil
	}
	after := b.DeepCopy()
	if err := apply(after); err != nil {
		return err
	}
	wanted := Bytes(&after.Status)
	if wanted <= Bytes(&b.Status) {
		return nil
	}
	others, err := r.bytesOfOthers(ctx, b, upload)
	if err != nil {
		return err
	}
	if others+wanted > r.MaxBytesPerNamespace {
		return (&quotaError{namespace: b.Namespace, used: others, wanted: wanted, most: r.MaxBytesPerNamespace}).status(b)
	}
	return nil
}

// bytesOfOthers is how much content the other bundles of a bundle's namespace have, and its uploads but for one.
func (r *REST) bytesOfOthers(ctx context.Context, b *rukpak.Bundle, upload string) (int64, error) {
	ctx, cancel := context.WithTimeout(genericapirequest.WithNamespace(ctx, b.Namespace), lookupTimeout)
	defer cancel()
	list, err := r.Bundles.List(ctx)
	if err != nil {
		return 0, unavailable("count the content of the namespace", b, err)
	}
	var sum int64
	for i := range list {
		if list[i].UID != b.UID {
			sum += Bytes(&list[i].Status)
		}
	}
	if r.Uploading == nil {
		return sum, nil
	}
	uploading, err := r.Uploading(ctx, b.Namespace, upload)
	if err != nil {
		return 0, unavailable("count the uploads of the namespace", b, err)
	}
	return sum + uploading, nil
}

// Bytes is how much content a status names, the current one and the history, in bytes.
func Bytes(s *rukpak.BundleStatus) int64 {
	var sum int64
	for c := range s.Contents() {
		sum += c.Size
	}
	return sum
}
