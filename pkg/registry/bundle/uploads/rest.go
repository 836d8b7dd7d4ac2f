// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package uploads serves the subresource bundles/uploads: content that is written in several requests, each of which
// may break off. It follows draft-ietf-httpbis-resumable-upload as far as requests through an aggregator can;
// docs/uploads.md says where it differs.
//
// What has come is kept by package upload and in the content store, so that any replica goes on with it. What is
// whole goes the way of PUT bundles/content, through the same checks.
package uploads

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/places"
	"rukpak.io/apiserver/pkg/content/reference"
	"rukpak.io/apiserver/pkg/content/upload"
	subresource "rukpak.io/apiserver/pkg/registry/bundle/content"
)

// Bundles reads bundles as etcd has them now. The namespace is in the context.
type Bundles interface {
	Get(ctx context.Context, name string) (*rukpak.Bundle, error)
}

// Content is where an upload goes once it is whole.
type Content interface {
	Target(ctx context.Context, name string, header http.Header, size int64) (*subresource.Target, error)
	Write(ctx context.Context, name string, a subresource.Assembled) (*rukpak.Bundle, int, error)
	Budget(ctx context.Context, b *rukpak.Bundle, upload string) (*subresource.Budget, error)
	NoteFull(ctx context.Context, b *rukpak.Bundle, refused error)
}

// References are the records that keep parts from being collected.
type References interface {
	Add(ctx context.Context, ref reference.Ref, namespace, name string) error
	Remove(ctx context.Context, ref reference.Ref) error
	Mark(ctx context.Context, store, digest string) (bool, error)
	reference.Settler
}

// Config is what the subresource works with. All of it but Whole is required.
type Config struct {
	Sessions   *upload.Sessions
	References References
	// Stores are the content stores by the names that sessions have.
	Stores  map[string]content.Store
	Bundles Bundles
	Content Content
	// Authorizer is asked whether a caller could write the content at once.
	Authorizer authorizer.Authorizer
	// Whole is that of the content.
	Whole func(ctx context.Context, store string) error
	// Expiry is how long an upload is kept that does not go on.
	Expiry time.Duration
	// CommitTimeout bounds the time from the last byte of a part until the session names it. The
	// collector's grace period is longer.
	CommitTimeout time.Duration
	// PlaceTimeout is how long a part waits for others to end.
	PlaceTimeout time.Duration
	Now          func() time.Time
}

// Bounds of what is taken.
const (
	// maxOfBundle and maxOfNamespace bound the sessions that are open. Some that begin at the same moment may go beyond.
	maxOfBundle    = 10
	maxOfNamespace = 200
	// maxAppends bounds the parts that are received at the same time by one process.
	maxAppends = 32
)

// REST connects requests to uploads.
type REST struct {
	Config
	// places bound the parts that are received at the same time.
	places *places.Places

	mu sync.Mutex
	// running are the requests that append to a session, and completions the commits, here, by session ID.
	running     map[string]*running
	completions map[string]*completion
	ended       bool // no more is read, since the server ends
}

var (
	_ rest.Storage         = &REST{}
	_ rest.Connecter       = &REST{}
	_ rest.StorageMetadata = &REST{}
)

// NewREST returns the subresource.
func NewREST(config Config) *REST {
	return &REST{
		Config: config, places: places.New(maxAppends, maxAppends),
		running: map[string]*running{}, completions: map[string]*completion{},
	}
}

// New returns the options of a request.
func (*REST) New() runtime.Object { return &rukpak.BundleUploadOptions{} }

// Destroy does nothing: what the subresource works with belongs to others.
func (*REST) Destroy() {}

// NewConnectOptions returns the parameters. The ID of an upload follows the subresource in the path.
func (*REST) NewConnectOptions() (runtime.Object, bool, string) {
	return &rukpak.BundleUploadOptions{}, true, "path"
}

// ConnectMethods are the methods that uploads know. The verbs that they need are get, create, patch and delete.
func (*REST) ConnectMethods() []string {
	return []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPatch, http.MethodDelete}
}

// Methods are those that are answered: of the uploads of a bundle, or of one of them, which has a path of its own.
func Methods(one bool) []string {
	if one {
		return []string{http.MethodGet, http.MethodHead, http.MethodPatch, http.MethodDelete}
	}
	return []string{http.MethodGet, http.MethodHead, http.MethodPost}
}

// ProducesMIMETypes is the type of what is answered.
func (*REST) ProducesMIMETypes(string) []string { return []string{runtime.ContentTypeJSON} }

// ProducesObject says that the response is no object of the API: it is one only when an upload is complete.
func (*REST) ProducesObject(string) any { return "" }

// call is one request.
type call struct {
	ctx       context.Context
	namespace string
	name      string // of the bundle
	id        string // of the upload, or ""
	w         http.ResponseWriter
	req       *http.Request
	body      *body // nil for a request without one, or before it is read
	lost      bool  // others have changed the upload since the request read it
	responder rest.Responder
}

// Connect returns the handler of one request.
func (r *REST) Connect(ctx context.Context, name string, options runtime.Object, responder rest.Responder) (http.Handler, error) {
	o, ok := options.(*rukpak.BundleUploadOptions)
	if !ok {
		return nil, fmt.Errorf("options of bundles/uploads are a %T", options)
	}
	namespace, id := genericapirequest.NamespaceValue(ctx), strings.Trim(o.Path, "/")
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		c := &call{
			ctx: genericapirequest.WithNamespace(req.Context(), namespace), namespace: namespace,
			name: name, id: id, w: w, req: req, responder: responder,
		}
		if err := r.serve(c); err != nil {
			subresource.Refuse(w, req, responder.Error, c.body.begun(), err)
		}
	}), nil
}

// serve answers a request, or returns the error that it is to be answered with.
func (r *REST) serve(c *call) error {
	switch {
	case c.id == "" && c.req.Method == http.MethodPost:
		return r.create(c)
	case c.id == "" && (c.req.Method == http.MethodGet || c.req.Method == http.MethodHead):
		return r.list(c)
	case c.id == "" || c.req.Method == http.MethodPost:
		return notAllowed(c)
	case c.req.Method == http.MethodPatch:
		return r.patch(c)
	case c.req.Method == http.MethodDelete:
		return r.abort(c)
	default:
		return r.query(c)
	}
}
