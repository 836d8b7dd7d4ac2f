// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package content serves the subresource bundles/content: the bytes of a bundle, read and written through
// the API server's own authentication, authorization, admission and audit.
package content

import (
	"context"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/places"
	"rukpak.io/apiserver/pkg/content/reference"
	"rukpak.io/apiserver/pkg/content/verify"
	"rukpak.io/apiserver/pkg/unpack/stage"
)

// Bundles reads bundles as etcd has them now, and commits what the server has found out about them. The
// namespace is in the context.
type Bundles interface {
	Get(ctx context.Context, name string) (*rukpak.Bundle, error)
	Commit(ctx context.Context, name string, change func(*rukpak.Bundle) error) (*rukpak.Bundle, error)
	// List reads those of the namespace in the context, or all where there is none in it.
	List(ctx context.Context) ([]rukpak.Bundle, error)
}

// Classes reads classes as etcd has them now.
type Classes interface {
	Class(ctx context.Context, name string) (*rukpak.ProvisionerClass, error)
}

// References are the records of which bundle has which bytes.
type References interface {
	Add(ctx context.Context, ref reference.Ref, namespace, name string) error
	Has(ctx context.Context, ref reference.Ref) (bool, error)
	Stores(ctx context.Context) ([]string, error)
	Remove(ctx context.Context, ref reference.Ref) error
	reference.Settler
	verify.Tombstones
}

// Config is what the subresource works with. The bounds, Uploading and Whole are optional.
type Config struct {
	Bundles    Bundles
	Classes    Classes
	References References
	// Stores are the content stores by the names that classes use.
	Stores map[string]content.Store
	// Resolve returns the image, by digest, that the attempt of a bundle has unpacked, or "" when
	// nobody knows.
	Resolve func(ctx context.Context, b *rukpak.Bundle) (string, error)
	// Scratch is a folder for the temporary files of uploads.
	Scratch string
	// CommitTimeout bounds the time from the end of an upload to the end of its
	// commit. The collector's grace period is longer.
	CommitTimeout time.Duration
	// PlaceTimeout is how long a write waits for others to end.
	PlaceTimeout time.Duration
	// MaxBytesPerNamespace bounds the content that the bundles of one namespace have together, in bytes; 0 is no bound.
	MaxBytesPerNamespace int64
	// Uploading is how many bytes the uploads have that are under way in a namespace, but for the one of an ID. Nil means none.
	Uploading func(ctx context.Context, namespace, except string) (int64, error)
	// MaxReaders and MaxReadersPerUser bound the reads that run at the same time; 0 means any number.
	MaxReaders, MaxReadersPerUser int
	// Whole returns an error while etcd and a store may not belong together, or it cannot be seen whether they do: what the store
	// lacks then is no loss. Without the name of a store it is about etcd alone. Nil means that all belong together.
	Whole func(ctx context.Context, store string) error
	// Tracer records the writes of attempts at bundles whose creation was traced. Nil records none.
	Tracer trace.Tracer
	// Stages gets to know what the writes of attempts took. Nil is nobody.
	Stages *stage.Notes
	// Released is called when content may have become that of nobody.
	Released func()
	Now      func() time.Time
}

// REST connects requests to the content of bundles.
type REST struct {
	Config
	storeNames []string
	// uploads and attempts bound the writes that run at the same time.
	uploads, attempts *places.Places
	readers           *readerLimits
	seals             *seals
	indexes           *indexes
	// rereads are the digests whose blobs are read a second time now.
	rereads sync.Map
	// commits are locks for the commits of one bundle, by its UID: each is held while something is in it.
	commits [commitLocks]chan struct{}
	damage  singleflight.Group // of Damaged
}

// commitLocks is how many locks the bundles share.
const commitLocks = 64

// lockCommit keeps commits of one bundle apart: what one of them adds another must not release. A lock of the
// process is enough for a store that belongs to one. It is waited for until ctx ends.
func (r *REST) lockCommit(ctx context.Context, uid types.UID) (unlock func(), err error) {
	h := fnv.New32a()
	// A hash takes everything.
	_, _ = h.Write([]byte(uid))
	lock := r.commits[h.Sum32()%commitLocks]
	select {
	case lock <- struct{}{}:
		return func() { <-lock }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for another commit to end: %w", context.Cause(ctx))
	}
}

const (
	// maxUploads bounds the uploads of clients, whose files are written twice and whose index is in memory:
	// up to 100 MiB each, for names that are made for it.
	maxUploads = 2
	// maxAttempts bounds the writes of unpack pods, which are streamed.
	maxAttempts = 16
)

var (
	_ rest.Storage         = &REST{}
	_ rest.Connecter       = &REST{}
	_ rest.StorageMetadata = &REST{}
)

// NewREST returns the subresource.
func NewREST(config Config) *REST {
	r := &REST{
		Config: config, uploads: places.New(maxUploads, maxUploads), attempts: places.New(maxAttempts, maxAttempts),
		readers: newReaderLimits(config.MaxReaders, config.MaxReadersPerUser), seals: newSeals(),
	}
	if r.Tracer == nil {
		r.Tracer = noop.NewTracerProvider().Tracer("")
	}
	r.indexes = newIndexes(config.Scratch)
	for i := range r.commits {
		r.commits[i] = make(chan struct{}, 1)
	}
	for name := range config.Stores {
		r.storeNames = append(r.storeNames, name)
	}
	slices.Sort(r.storeNames)
	return r
}

// New returns the options of a request.
func (*REST) New() runtime.Object { return &rukpak.BundleContentOptions{} }

// Destroy does nothing: what the subresource works with belongs to others.
func (*REST) Destroy() {}

// NewConnectOptions returns the query parameters, and the path of what is read of the content.
func (*REST) NewConnectOptions() (runtime.Object, bool, string) {
	return &rukpak.BundleContentOptions{}, true, "path"
}

// ConnectMethods are the methods that content knows. The verbs that they need are get and update.
func (*REST) ConnectMethods() []string {
	return Methods(false)
}

// Methods are those that are answered: of all the content, or of a part of it, which has a path of its own.
func Methods(part bool) []string {
	if part {
		return []string{http.MethodGet, http.MethodHead}
	}
	return []string{http.MethodGet, http.MethodHead, http.MethodPut}
}

// ProducesMIMETypes is the type of the bytes.
func (*REST) ProducesMIMETypes(string) []string { return []string{mediaType} }

// ProducesObject says that the response is a string of bytes.
func (*REST) ProducesObject(string) any { return "" }

// Connect returns the handler of one request.
func (r *REST) Connect(ctx context.Context, name string, options runtime.Object, responder rest.Responder) (http.Handler, error) {
	o, ok := options.(*rukpak.BundleContentOptions)
	if !ok {
		return nil, fmt.Errorf("options of bundles/content are a %T", options)
	}
	namespace := genericapirequest.NamespaceValue(ctx)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := genericapirequest.WithNamespace(req.Context(), namespace)
		if err := checkQuery(req.URL.Query()); err != nil {
			Refuse(w, req, responder.Error, false, err)
			return
		}
		if req.Method == http.MethodPut {
			if asksInside(o) {
				refuseInside(w, req, responder)
				return
			}
			r.put(ctx, name, o, w, req, responder)
			return
		}
		reading, leave, err := r.readers.enter(ctx)
		if err != nil {
			responder.Error(err)
			return
		}
		defer leave()
		r.get(reading, name, o, w, req, responder)
	}), nil
}

// checkQuery refuses what the parser of options takes for something else: any word for true, a path for that of the URL, and an empty
// digest, as of a variable that was never set, for none.
func checkQuery(query url.Values) error {
	for _, value := range query["recursive"] {
		if !slices.Contains([]string{"", "true", "1", "false", "0"}, value) {
			return badRequest("query parameter recursive: %.40q is neither true nor false", value)
		}
	}
	if query.Has("digest") && query.Get("digest") == "" {
		return badRequest("query parameter digest: it is empty; without it the current content is read")
	}
	if query.Has("path") {
		return badRequest("query parameter path: a file is named by the path of the URL, content/PATH")
	}
	return nil
}

// Release removes the records of a bundle that was deleted, so that its content can be collected. What this does
// not get to is found by the collector, later.
func (r *REST) Release(b *rukpak.Bundle) {
	// Whoever deletes the bundle waits for this.
	ctx, cancel := context.WithTimeout(context.Background(), min(lookupTimeout, r.CommitTimeout))
	defer cancel()
	unlock, err := r.lockCommit(ctx, b.UID)
	if err != nil {
		klog.Background().Info("Content of a deleted bundle is left to the collector", "bundle", klog.KObj(b), "err", err)
		return
	}
	defer unlock()
	r.drop(ctx, b, digestsOfStatus(&b.Status), r.storeNames)
}

// replaced removes the records of contents that a bundle that goes on has no more. The caller holds the bundle's
// lock. In a store that other processes use one of them may be about to name such a content again; it is
// left to the collector.
func (r *REST) replaced(ctx context.Context, b *rukpak.Bundle, digests []string) {
	own := slices.DeleteFunc(slices.Clone(r.storeNames), func(name string) bool { return r.Stores[name].Shared() })
	r.drop(ctx, b, digests, own)
}

func (r *REST) drop(ctx context.Context, b *rukpak.Bundle, digests, stores []string) {
	for _, digest := range digests {
		for _, store := range stores {
			ref := reference.Ref{Store: store, Digest: digest, BundleUID: string(b.UID)}
			if err := r.References.Remove(ctx, ref); err != nil {
				klog.FromContext(ctx).Error(err, "Cannot release content now", "bundle", klog.KObj(b), "digest", digest)
				return
			}
		}
	}
	if len(digests) > 0 {
		r.Released()
	}
}

// digestsOfStatus are the contents that a status names.
func digestsOfStatus(s *rukpak.BundleStatus) []string {
	var digests []string
	for c := range s.Contents() {
		digests = append(digests, c.Digest)
	}
	return digests
}

// without returns what of a list is not in another.
func without(list, other []string) []string {
	return slices.DeleteFunc(list, func(s string) bool { return slices.Contains(other, s) })
}

// locate returns the store that holds a bundle's content: the one that has the record of it. A
// bundle's class, which named the store, may be gone.
func (r *REST) locate(ctx context.Context, b *rukpak.Bundle, digest string) (string, bool, error) {
	for _, name := range r.storeNames {
		has, err := r.References.Has(ctx, reference.Ref{Store: name, Digest: digest, BundleUID: string(b.UID)})
		if err != nil || has {
			return name, has, err
		}
	}
	// Content in a store that is not configured is not lost, and must not be said to be.
	stores, err := r.References.Stores(ctx)
	if err != nil {
		return "", false, err
	}
	for _, name := range without(stores, r.storeNames) {
		has, err := r.References.Has(ctx, reference.Ref{Store: name, Digest: digest, BundleUID: string(b.UID)})
		if err == nil && has {
			err = fmt.Errorf("it is in the store %q, which is not configured", name)
		}
		if err != nil {
			return "", false, err
		}
	}
	return "", false, nil
}
