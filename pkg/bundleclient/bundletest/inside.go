// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundletest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content/listing"
	"rukpak.io/apiserver/pkg/tarball"
	"rukpak.io/apiserver/pkg/tarball/toc"
)

// inside answers with a file of a content, or the list of a directory.
func (a *API) inside(w http.ResponseWriter, req *http.Request, key, path string) {
	archive, digest, damage := a.find(req, key)
	if archive == nil {
		Refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	index, err := indexOf(req.Context(), archive)
	var entry *toc.Entry
	if err == nil {
		entry, err = index.Resolve(req.Context(), strings.TrimSuffix(path, "/"))
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, toc.ErrNotDirectory):
		noFile(w, err)
	case err != nil:
		Refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
	case entry.Type == tarball.TypeDirectory:
		sendList(w, req, index, entry, digest)
	default:
		sendFile(w, req, index, entry, archive, damage)
	}
}

// noFile says that there is nothing at a path.
func noFile(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusNotFound)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
		Message: err.Error(), Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: v1alpha1.CauseFileNotFound}}},
	})
}

// sendList sends the list of a directory, not recursively.
func sendList(w http.ResponseWriter, req *http.Request, index *toc.Index, dir *toc.Entry, digest string) {
	w.Header().Set("ETag", "W/"+strconv.Quote(digest))
	w.Header().Set("Content-Type", listing.MediaType)
	prefix := dir.Name
	if prefix != "" {
		prefix += "/"
	}
	list := listing.NewWriter(w, dir.Name)
	err := index.List(req.Context(), dir.Name, req.URL.Query().Get("after"), false, func(e *toc.Entry) error {
		l := listing.Entry{Name: strings.TrimPrefix(e.Name, prefix), Type: listing.File, Mode: fmt.Sprintf("%04o", e.Mode), Size: e.Size, Digest: e.DigestString(), LinkTarget: e.Linkname}
		switch e.Type {
		case tarball.TypeDirectory:
			l.Type = listing.Directory
		case tarball.TypeSymlink:
			l.Type = listing.SymbolicLink
		}
		return list.Add(l)
	})
	if err == nil {
		_ = list.Close()
	}
}

// sendFile sends a file. Damage changes its first byte.
func sendFile(w http.ResponseWriter, req *http.Request, index *toc.Index, e *toc.Entry, archive []byte, damage bool) {
	body, err := index.Read(req.Context(), opener(archive), e.Offset, e.Size)
	var raw []byte
	if err == nil {
		raw, err = io.ReadAll(body)
		err = errors.Join(err, body.Close())
	}
	if err != nil {
		Refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
		return
	}
	if damage && len(raw) > 0 {
		raw[0] ^= 1
	}
	w.Header().Set("ETag", strconv.Quote(e.DigestString()))
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(raw))
}

// indexOf makes the index of an archive.
func indexOf(ctx context.Context, archive []byte) (*toc.Index, error) {
	builder, err := toc.NewBuilder(os.TempDir())
	if err != nil {
		return nil, err
	}
	var raw []byte
	summary, err := tarball.VerifyIndexed(ctx, bytes.NewReader(archive), tarball.Options{Index: builder})
	if err == nil {
		var r io.Reader
		if r, _, err = builder.Finish(summary); err == nil {
			raw, err = io.ReadAll(r)
		}
	}
	if err := errors.Join(err, builder.Close()); err != nil {
		return nil, err
	}
	return toc.Open(ctx, summary.Digest, opener(raw))
}

// opener opens parts of bytes.
func opener(raw []byte) toc.Opener {
	return func(_ context.Context, offset, length int64) (io.ReadCloser, error) {
		if length < 0 {
			length = int64(len(raw)) - offset
		}
		return io.NopCloser(io.NewSectionReader(bytes.NewReader(raw), offset, length)), nil
	}
}
