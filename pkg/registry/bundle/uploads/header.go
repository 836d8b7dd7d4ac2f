// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package uploads

import (
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/content/upload"
	subresource "rukpak.io/apiserver/pkg/registry/bundle/content"
)

// Header fields of the draft.
const (
	fieldComplete = "Upload-Complete"
	fieldOffset   = "Upload-Offset"
	fieldLength   = "Upload-Length"
	fieldLimit    = "Upload-Limit"
)

// partialUpload is the media type of a PATCH.
const partialUpload = "application/partial-upload"

// none stands for a number that a request does not have.
const none = -1

// fields are what a request says of the upload.
type fields struct {
	// complete means that the body ends the upload. said is false where nothing is said about it.
	complete, said bool
	// offset and length are none where they are not given.
	offset, length int64
	// digest is the sha-256 of the body, nil where it is not given.
	digest []byte
}

// parseFields reads the header fields of a request. By the draft a field with an impossible value counts as not there. A
// digest that cannot be read is an error: whoever gave it wants it checked.
func parseFields(h http.Header) (fields, error) {
	if err := checkKept(h); err != nil {
		return fields{}, err
	}
	f := fields{offset: integer(h, fieldOffset), length: integer(h, fieldLength)}
	switch item(h, fieldComplete) {
	case "?1":
		f.complete, f.said = true, true
	case "?0":
		f.said = true
	}
	digest, err := subresource.DigestField(h.Values("Content-Digest"))
	if err != nil {
		return f, badRequest("header Content-Digest: %v", err)
	}
	f.digest = digest
	if _, err := subresource.DigestField(h.Values("Repr-Digest")); err != nil {
		return f, badRequest("header Repr-Digest: %v", err)
	}
	return f, nil
}

// maxField is how many bytes a header field may have that is kept with the upload: it is written again with each part. As JSON
// it may have six times as many.
const maxField = 4 << 10

// checkKept refuses fields that are too long to be kept (RFC 6585, section 5).
func checkKept(h http.Header) error {
	for _, field := range []string{"If-Match", "If-None-Match", "Repr-Digest"} {
		if n := len(lines(h, field)); n > maxField {
			message := fmt.Sprintf("header %s: it has %d bytes, and is kept with the upload, for which it may have %d", field, n, maxField)
			return &apierrors.StatusError{ErrStatus: metav1.Status{
				Status: metav1.StatusFailure, Code: http.StatusRequestHeaderFieldsTooLarge, Reason: "RequestHeaderFieldsTooLarge", Message: message,
				Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: CauseFieldTooLong, Message: message, Field: field}}},
			}}
		}
	}
	return nil
}

// item returns the bare value of a structured field that is an Item (RFC 9651, section 3.3), without its parameters. Of
// several lines none is the value.
func item(h http.Header, field string) string {
	values := h.Values(field)
	if len(values) != 1 {
		return ""
	}
	bare, _, _ := strings.Cut(values[0], ";")
	return strings.TrimSpace(bare)
}

// maxDigits is how many digits an Integer may have.
const maxDigits = 15

// integer returns an Integer that is not negative, or none.
func integer(h http.Header, field string) int64 {
	text := item(h, field)
	if text == "" || len(text) > maxDigits || strings.Trim(text, "0123456789") != "" {
		return none
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return none
	}
	return n
}

// isPartial reports whether the body of a PATCH is a part of an upload.
func isPartial(h http.Header) bool {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && kind == partialUpload
}

// describe sets the header fields that say where an upload is. limit is the greatest size, 0 for any.
func (r *REST) describe(h http.Header, s *upload.Session, limit int64) {
	h.Set(fieldOffset, strconv.FormatInt(s.Offset(), 10))
	complete := "?0"
	if s.Outcome != nil {
		complete = "?1"
	}
	h.Set(fieldComplete, complete)
	if s.Length != upload.UnknownLength {
		h.Set(fieldLength, strconv.FormatInt(s.Length, 10))
	}
	limits := fmt.Sprintf("max-age=%d", max(0, int64(r.expires(s).Sub(r.Now())/time.Second)))
	if limit > 0 {
		limits = fmt.Sprintf("max-size=%d, ", limit) + limits
	}
	h.Set(fieldLimit, limits)
}
