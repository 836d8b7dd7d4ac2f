// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package uploads

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/etcdtest"
	"rukpak.io/apiserver/pkg/content/filesystem"
	"rukpak.io/apiserver/pkg/content/reference"
	"rukpak.io/apiserver/pkg/content/upload"
	subresource "rukpak.io/apiserver/pkg/registry/bundle/content"
	"rukpak.io/apiserver/pkg/tarball"
)

// world is two replicas of the subresource behind real HTTP servers, over one etcd and one store of files. Bundles and
// classes are in memory.
type world struct {
	t        *testing.T
	replicas []*replica
	bundles  *memoryBundles
	class    *rukpak.ProvisionerClass
	records  *reference.Records
	sessions *upload.Sessions
	store    *faultyStore
	dir      string // of the store
	prefix   string // of etcd

	mu  sync.Mutex
	now time.Time
	// mayWrite is whether the authorizer lets the caller write content at once.
	mayWrite bool
}

type replica struct {
	*REST
	whole  *subresource.REST
	server *httptest.Server
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldIn(t, etcdtest.Start(t))
}

// newWorldIn makes a world of its own in an etcd that several have.
func newWorldIn(t *testing.T, client *clientv3.Client) *world {
	t.Helper()
	prefix := "/" + upload.NewID()
	w := &world{
		t: t, prefix: prefix, dir: t.TempDir(), bundles: &memoryBundles{all: map[string]*rukpak.Bundle{}}, mayWrite: true,
		now: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC),
		class: &rukpak.ProvisionerClass{
			ObjectMeta: metav1.ObjectMeta{Name: "raw"}, Provisioner: v1alpha1.ProvisionerRaw, Store: "default",
			Limits: &rukpak.ContentLimits{CompressedBytes: ptr.To(resource.MustParse("32Mi")), Bytes: ptr.To(resource.MustParse("40Mi")), Files: ptr.To[int64](100)},
		},
	}
	store, err := filesystem.Open(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	w.store = &faultyStore{Store: store}
	w.records = reference.New(client, prefix, w.clock)
	w.sessions = upload.New(client, prefix, w.clock)
	for range 2 {
		w.replicas = append(w.replicas, w.newReplica())
	}
	w.bundles.all["app"] = newBundle("app", "uid-1")
	return w
}

func newBundle(name string, uid types.UID) *rukpak.Bundle {
	b := &rukpak.Bundle{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: uid, Generation: 1},
		Spec:       rukpak.BundleSpec{ProvisionerClassName: "raw", Source: rukpak.BundleSource{Type: rukpak.SourceTypeUpload, Upload: &rukpak.UploadSource{}}},
	}
	conditions.Begin(&b.Status.Conditions, 1)
	return b
}

func (w *world) newReplica() *replica {
	stores := map[string]content.Store{"default": w.store}
	whole := subresource.NewREST(subresource.Config{
		Bundles: w.bundles, Classes: w, References: w.records, Stores: stores, Scratch: w.t.TempDir(),
		CommitTimeout: time.Minute, PlaceTimeout: time.Second, Released: func() {}, Now: w.clock, Uploading: w.sessions.Bytes,
	})
	r := &replica{whole: whole, REST: NewREST(Config{
		Sessions: w.sessions, References: w.records, Stores: stores, Bundles: w.bundles, Content: whole, Authorizer: authorizer.AuthorizerFunc(w.authorize),
		Expiry: 24 * time.Hour, CommitTimeout: time.Minute, PlaceTimeout: time.Second, Now: w.clock,
	})}
	r.server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) { w.serve(r, rw, req) }))
	w.t.Cleanup(r.server.Close)
	return r
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

// Class makes the world the classes of the subresource.
func (w *world) Class(_ context.Context, name string) (*rukpak.ProvisionerClass, error) {
	if name != w.class.Name {
		return nil, apierrors.NewNotFound(rukpak.Resource("provisionerclasses"), name)
	}
	return w.class, nil
}

func (w *world) authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetVerb() != "update" || a.GetResource() != "bundles" || a.GetSubresource() != "content" || a.GetNamespace() != "team" || a.GetName() == "" {
		return authorizer.DecisionDeny, "not what is asked here", nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mayWrite {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "no rule", nil
}

// serve does what the generic server does around a Connecter. The user is in a header field.
func (w *world) serve(r *replica, rw http.ResponseWriter, req *http.Request) {
	name, id, ok := strings.Cut(strings.TrimPrefix(req.URL.Path, "/apis/rukpak.io/v1alpha1/namespaces/team/bundles/"), "/uploads")
	if !ok {
		http.NotFound(rw, req)
		return
	}
	caller := req.Header.Get("X-User")
	if caller == "" {
		caller = "jane"
	}
	ctx := genericapirequest.WithUser(genericapirequest.WithNamespace(req.Context(), "team"), &user.DefaultInfo{Name: caller})
	handler, err := r.Connect(ctx, name, &rukpak.BundleUploadOptions{Path: id}, responder{rw})
	if err != nil {
		w.t.Error(err)
		return
	}
	handler.ServeHTTP(rw, req.WithContext(ctx))
}

type responder struct{ http.ResponseWriter }

func (r responder) Object(code int, obj runtime.Object) {
	versioned := &v1alpha1.Bundle{}
	if err := v1alpha1.Convert_rukpak_Bundle_To_v1alpha1_Bundle(obj.(*rukpak.Bundle), versioned, nil); err != nil {
		r.Error(err)
		return
	}
	r.WriteHeader(code)
	_ = json.NewEncoder(r).Encode(versioned)
}

func (r responder) Error(err error) {
	var s apierrors.APIStatus
	if !errors.As(err, &s) {
		s = apierrors.NewInternalError(err)
	}
	status := s.Status()
	r.Header().Set("Content-Type", "application/json")
	r.WriteHeader(int(status.Code))
	_ = json.NewEncoder(r).Encode(status)
}

// answer is a response that was read to its end.
type answer struct {
	code   int
	header http.Header
	body   []byte
}

func (a answer) offset(t *testing.T) int64 {
	t.Helper()
	n, err := strconv.ParseInt(a.header.Get(fieldOffset), 10, 64)
	if err != nil {
		t.Fatalf("%d %v has no offset: %s", a.code, a.header, a.body)
	}
	return n
}

func (a answer) cause() string {
	var s metav1.Status
	if json.Unmarshal(a.body, &s) != nil || s.Details == nil || len(s.Details.Causes) == 0 {
		return ""
	}
	return string(s.Details.Causes[0].Type)
}

const root = "/apis/rukpak.io/v1alpha1/namespaces/team/bundles/app/uploads"

// do sends a request to a replica. A body of nil is none.
func (w *world) do(replica int, method, path string, body []byte, headers ...string) answer {
	w.t.Helper()
	a, err := w.try(replica, method, path, bytes.NewReader(body), headers...)
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

func (w *world) try(replica int, method, path string, body io.Reader, headers ...string) (answer, error) {
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.replicas[replica].server.URL+path, body)
	if err != nil {
		return answer{}, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := w.replicas[replica].server.Client().Do(req)
	if err != nil {
		return answer{}, err
	}
	got, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, got}, errors.Join(err, res.Body.Close())
}

// begin begins an upload, and returns its path.
func (w *world) begin(headers ...string) string {
	w.t.Helper()
	a := w.do(0, http.MethodPost, root, nil, append([]string{fieldComplete, "?0"}, headers...)...)
	if a.code != http.StatusCreated || a.offset(w.t) != 0 {
		w.t.Fatalf("create: %d %v %s", a.code, a.header, a.body)
	}
	return a.location(w.t, root)
}

// location is the path of the upload that a request to another path has begun.
func (a answer) location(t *testing.T, path string) string {
	t.Helper()
	base, err := url.Parse(path)
	if err != nil {
		t.Fatal(err)
	}
	to, err := base.Parse(a.header.Get("Location"))
	if err != nil || !strings.HasPrefix(to.Path, strings.TrimSuffix(path, "/")+"/") {
		t.Fatalf("the location is %q, %v", a.header.Get("Location"), err)
	}
	return to.Path
}

// patch sends a part.
func (w *world) patch(replica int, path string, offset int, body []byte, complete bool, headers ...string) answer {
	w.t.Helper()
	return w.do(replica, http.MethodPatch, path, body, append(patchHeaders(offset, complete), headers...)...)
}

func patchHeaders(offset int, complete bool) []string {
	said := "?0"
	if complete {
		said = "?1"
	}
	return []string{"Content-Type", partialUpload, fieldOffset, strconv.Itoa(offset), fieldComplete, said}
}

// session is the record of an upload.
func (w *world) session(path string) *upload.Session {
	w.t.Helper()
	s, err := w.sessions.Get(w.t.Context(), upload.Key{Namespace: "team", BundleUID: "uid-1", ID: strings.TrimPrefix(path, root+"/")})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// held lists the holders of reference records, those of the bundle left out.
func (w *world) held() []string {
	w.t.Helper()
	var holders []string
	for rec, err := range w.records.List(w.t.Context(), "default") {
		if err != nil {
			w.t.Fatal(err)
		}
		if strings.HasPrefix(rec.BundleUID, upload.HolderPrefix) {
			holders = append(holders, rec.BundleUID)
		}
	}
	return holders
}

// content is the digest of the bundle's content, or "".
func (w *world) content() string {
	w.t.Helper()
	b, err := w.bundles.Get(genericapirequest.WithNamespace(w.t.Context(), "team"), "app")
	if err != nil {
		w.t.Fatal(err)
	}
	if b.Status.Content == nil {
		return ""
	}
	return b.Status.Content.Digest
}

// blob is the file of a digest.
func (w *world) blob(digest string) string {
	hex := strings.TrimPrefix(digest, "sha256:")
	return filepath.Join(w.dir, "blobs", "sha256", hex[:2], hex)
}

func (w *world) removeBlob(digest string) {
	w.t.Helper()
	if err := os.Remove(w.blob(digest)); err != nil {
		w.t.Fatal(err)
	}
}

// change changes the bundle as its owner would.
func (w *world) change(f func(*rukpak.Bundle)) {
	w.bundles.Lock()
	defer w.bundles.Unlock()
	f(w.bundles.all["app"])
}

type memoryBundles struct {
	sync.Mutex
	all map[string]*rukpak.Bundle
	get error
	// meanwhile, if set, is called once before a Get: what others do in between.
	meanwhile func()
}

func (m *memoryBundles) Get(ctx context.Context, name string) (*rukpak.Bundle, error) {
	if meanwhile := m.meanwhile; meanwhile != nil {
		m.meanwhile = nil
		meanwhile()
	}
	m.Lock()
	defer m.Unlock()
	if m.get != nil {
		return nil, m.get
	}
	b, ok := m.all[name]
	if !ok || genericapirequest.NamespaceValue(ctx) != "team" {
		return nil, apierrors.NewNotFound(rukpak.Resource("bundles"), name)
	}
	return b.DeepCopy(), nil
}

func (m *memoryBundles) List(ctx context.Context) ([]rukpak.Bundle, error) {
	m.Lock()
	defer m.Unlock()
	var list []rukpak.Bundle
	for _, b := range m.all {
		if ns := genericapirequest.NamespaceValue(ctx); ns == "" || ns == b.Namespace {
			list = append(list, *b.DeepCopy())
		}
	}
	return list, nil
}

func (m *memoryBundles) Commit(ctx context.Context, name string, change func(*rukpak.Bundle) error) (*rukpak.Bundle, error) {
	b, err := m.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := change(b); err != nil {
		return nil, err
	}
	m.Lock()
	defer m.Unlock()
	m.all[name] = b.DeepCopy()
	return b, nil
}

// faultyStore fails where it is told to.
type faultyStore struct {
	content.Store
	room, create error
	// meanwhile, if set, is called once before a Commit: what others do in between.
	meanwhile func()
	written   atomic.Int64 // by all writers
}

func (f *faultyStore) Room(ctx context.Context) error {
	if f.room != nil {
		return f.room
	}
	return f.Store.Room(ctx)
}

func (f *faultyStore) Create(ctx context.Context) (content.Writer, error) {
	if f.create != nil {
		return nil, f.create
	}
	w, err := f.Store.Create(ctx)
	return &faultyWriter{w, f}, err
}

type faultyWriter struct {
	content.Writer
	of *faultyStore
}

func (f *faultyWriter) Write(b []byte) (int, error) {
	n, err := f.Writer.Write(b)
	f.of.written.Add(int64(n))
	return n, err
}

func (f *faultyWriter) Commit(ctx context.Context, digest string) error {
	if meanwhile := f.of.meanwhile; meanwhile != nil {
		f.of.meanwhile = nil
		meanwhile()
	}
	return f.Writer.Commit(ctx, digest)
}

// archive is a tar of files, and the digest of the content that it becomes.
func archive(t *testing.T, files map[string]string) ([]byte, string) {
	t.Helper()
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Typeflag: tar.TypeReg, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	summary, err := tarball.Canonicalize(t.Context(), io.Discard, bytes.NewReader(buffer.Bytes()), tarball.Options{Scratch: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes(), summary.Digest
}

// noise is a string that does not compress.
func noise(seed uint64, size int) string {
	var key [32]byte
	key[0] = byte(seed)
	b := make([]byte, size)
	_, _ = rand.NewChaCha8(key).Read(b)
	return string(b)
}

func digestField(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}
