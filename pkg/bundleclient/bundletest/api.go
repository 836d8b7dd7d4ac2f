// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bundletest is as much of the API as clients of content use, in the process of a test: contents of bundles, the watch
// of bundles, and uploads. It has no rules of its own; what the server itself does is tested with the server.
package bundletest

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/tarball"
)

// API is a server that answers anybody.
type API struct {
	*httptest.Server

	mu       sync.Mutex
	bundles  map[string]*bundle // by namespace/name
	version  int
	changed  chan struct{} // closed at each change
	requests []string
	upload   bytes.Buffer

	faults Faults
}

type bundle struct {
	object   v1alpha1.Bundle
	archive  []byte
	archives map[string][]byte // that are served by digest
}

// Faults are what goes wrong.
type Faults struct {
	// MayNotWatch refuses watches.
	MayNotWatch bool
	// Watches are after how many events the next watches expire, in turn. Those after them do not.
	Watches []int
	// Damage changes a byte of each content that is sent.
	Damage bool
}

// Start starts an API without bundles. The caller closes it.
func Start() *API {
	a := &API{bundles: map[string]*bundle{}, changed: make(chan struct{})}
	a.Server = httptest.NewServer(a)
	return a
}

// Fail makes things go wrong from now on.
func (a *API) Fail(f Faults) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.faults = f
}

// Config is for its clients.
func (a *API) Config() *rest.Config { return &rest.Config{Host: a.URL} }

// Pack makes the canonical archive of files, which have to be such as can be in one.
func Pack(files fs.FS) []byte {
	var raw, out bytes.Buffer
	w := tar.NewWriter(&raw)
	if err := w.AddFS(files); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	if _, err := tarball.Canonicalize(context.Background(), &out, &raw, tarball.Options{Scratch: os.TempDir()}); err != nil {
		panic(err)
	}
	return out.Bytes()
}

// Put makes files the content of a bundle, "namespace/name", which it makes, and returns its digest. History says whether those
// before are still served.
func (a *API) Put(key string, files fs.FS, history bool) string {
	return a.PutArchive(key, Pack(files), history)
}

// PutArchive does as Put, with a canonical archive.
func (a *API) PutArchive(key string, archive []byte, history bool) string {
	summary, err := tarball.Verify(context.Background(), bytes.NewReader(archive), tarball.Limits{}, nil)
	if err != nil {
		panic(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.bundles[key]
	if b == nil {
		b = &bundle{}
		b.object.APIVersion, b.object.Kind = v1alpha1.SchemeGroupVersion.String(), "Bundle"
		b.object.Namespace, b.object.Name, _ = strings.Cut(key, "/")
		a.bundles[key] = b
	}
	if b.archives == nil || !history {
		b.archives = map[string][]byte{}
	}
	b.archive, b.archives[summary.Digest] = archive, archive
	b.object.Status.Content = &v1alpha1.ContentStatus{Digest: summary.Digest, Size: summary.Size, UncompressedSize: summary.UncompressedSize}
	a.announce()
	return summary.Digest
}

// announce wakes the watches. The lock is held.
func (a *API) announce() {
	a.version++
	for _, b := range a.bundles {
		b.object.ResourceVersion = strconv.Itoa(a.version)
	}
	close(a.changed)
	a.changed = make(chan struct{})
}

// Remove deletes a bundle.
func (a *API) Remove(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.bundles, key)
	a.announce()
}

// Count is how many requests had a text in them.
func (a *API) Count(text string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, r := range a.requests {
		if strings.Contains(r, text) {
			n++
		}
	}
	return n
}

// ServeHTTP answers one request.
func (a *API) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	a.mu.Lock()
	a.requests = append(a.requests, req.Method+" "+req.URL.RequestURI()+" "+req.Header.Get("Range"))
	a.mu.Unlock()
	parts := strings.Split(strings.TrimPrefix(req.URL.Path, "/apis/rukpak.io/v1alpha1/"), "/")
	switch {
	case len(parts) == 3 && req.URL.Query().Get("watch") != "":
		a.watch(w, req, parts[1]+"/"+strings.TrimPrefix(req.URL.Query().Get("fieldSelector"), "metadata.name="))
	case len(parts) == 5 && parts[4] == "content":
		a.content(w, req, parts[1]+"/"+parts[3])
	case len(parts) > 5 && parts[4] == "content":
		a.inside(w, req, parts[1]+"/"+parts[3], strings.Join(parts[5:], "/"))
	case len(parts) >= 5 && parts[4] == "uploads":
		a.uploads(w, req, parts[1]+"/"+parts[3])
	default:
		Refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	}
}

// Refuse answers with a Status.
func Refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: string(reason),
	})
}

// find is the archive that a request is for, nil where there is none, its digest, and whether it is to be damaged.
func (a *API) find(req *http.Request, key string) (archive []byte, digest string, damage bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.bundles[key]
	if b == nil {
		return nil, "", false
	}
	archive, digest = b.archive, b.object.Status.Content.Digest
	if asked := req.URL.Query().Get("digest"); asked != "" {
		archive, digest = b.archives[asked], asked
	}
	return archive, digest, a.faults.Damage
}

func (a *API) content(w http.ResponseWriter, req *http.Request, key string) {
	archive, digest, damage := a.find(req, key)
	if archive == nil {
		Refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	if damage {
		archive = bytes.Clone(archive)
		archive[len(archive)-5] ^= 1 // in the checksum of the gzip
	}
	w.Header().Set("ETag", strconv.Quote(digest))
	w.Header().Set("Content-Type", "application/gzip")
	http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(archive))
}

// watch sends the state of a bundle, and each one after it.
func (a *API) watch(w http.ResponseWriter, req *http.Request, key string) {
	a.mu.Lock()
	refuse, events := a.faults.MayNotWatch, -1
	if len(a.faults.Watches) > 0 && !refuse {
		events, a.faults.Watches = a.faults.Watches[0], a.faults.Watches[1:]
	}
	a.mu.Unlock()
	if refuse {
		Refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	kind, there := "ADDED", false
	for sent := 0; sent != events; sent++ {
		a.mu.Lock()
		changed, b := a.changed, a.bundles[key]
		var object v1alpha1.Bundle
		if b != nil {
			object = *b.object.DeepCopy()
		}
		a.mu.Unlock()
		switch {
		case b != nil:
			send(w, kind, &object)
			kind, there = "MODIFIED", true
		case there:
			object.APIVersion, object.Kind = v1alpha1.SchemeGroupVersion.String(), "Bundle"
			send(w, "DELETED", &object)
			kind, there = "ADDED", false
		}
		select {
		case <-changed:
		case <-req.Context().Done():
			return
		}
	}
	send(w, "ERROR", &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired})
}

func send(w http.ResponseWriter, kind string, object any) {
	_ = json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": object})
	w.(http.Flusher).Flush()
}

// uploads takes one upload at a time.
func (a *API) uploads(w http.ResponseWriter, req *http.Request, key string) {
	if req.Method == http.MethodPost {
		a.upload.Reset()
		w.Header().Set("Location", path.Join(req.URL.Path, "upload-1"))
		w.WriteHeader(http.StatusCreated)
		return
	}
	if _, err := io.Copy(&a.upload, req.Body); err != nil {
		Refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
		return
	}
	w.Header().Set("Upload-Offset", strconv.Itoa(a.upload.Len()))
	if req.Header.Get("Upload-Complete") != "?1" {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	var archive bytes.Buffer
	if _, err := tarball.Canonicalize(req.Context(), &archive, &a.upload, tarball.Options{Scratch: os.TempDir()}); err != nil {
		Refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		return
	}
	a.PutArchive(key, archive.Bytes(), true)
	a.mu.Lock()
	defer a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(&a.bundles[key].object)
}
