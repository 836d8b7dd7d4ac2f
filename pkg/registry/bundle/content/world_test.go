// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/conditions"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/filesystem"
	"rukpak.io/apiserver/pkg/content/reference"
	"rukpak.io/apiserver/pkg/tarball"
)

// world is the subresource behind a real HTTP server, over a real store of files; what etcd holds is in memory.
type world struct {
	t       testing.TB
	rest    *REST
	bundles *memoryBundles
	classes memoryClasses
	records *memoryReferences
	store   *faultyStore
	dir     string // of the store
	caller  user.Info
	server  *httptest.Server
	served  chan struct{} // one for each request that has been answered
}

func newWorld(t *testing.T) *world { return newWorldOf(t) }

func newWorldOf(t testing.TB) *world {
	t.Helper()
	dir := t.TempDir()
	store, err := filesystem.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &world{
		t: t, dir: dir, store: &faultyStore{Store: store}, bundles: &memoryBundles{all: map[string]*rukpak.Bundle{}},
		classes: memoryClasses{}, records: &memoryReferences{all: map[reference.Ref]bool{}}, caller: &user.DefaultInfo{Name: "jane"},
		served: make(chan struct{}, 100),
	}
	w.rest = NewREST(Config{
		Bundles: w.bundles, Classes: w.classes, References: w.records, Stores: map[string]content.Store{"default": w.store},
		Resolve: func(_ context.Context, b *rukpak.Bundle) (string, error) { return b.Spec.Source.Image.Reference, nil },
		Scratch: t.TempDir(), CommitTimeout: time.Minute, Released: func() {}, PlaceTimeout: 50 * time.Millisecond, Now: func() time.Time { return time.Unix(1e9, 0) },
	})
	w.server = httptest.NewServer(http.HandlerFunc(w.serve))
	t.Cleanup(w.server.Close)
	w.classes["raw"] = &rukpak.ProvisionerClass{
		ObjectMeta: metav1.ObjectMeta{Name: "raw"}, Provisioner: v1alpha1.ProvisionerRaw, Store: "default", RevisionHistoryLimit: ptr.To[int32](2),
		Limits: &rukpak.ContentLimits{CompressedBytes: ptr.To(resource.MustParse("1Mi")), Bytes: ptr.To(resource.MustParse("2Mi")), Files: ptr.To[int64](10)},
	}
	return w
}

// serve does what the generic server does around a Connecter.
func (w *world) serve(rw http.ResponseWriter, req *http.Request) {
	defer func() {
		select {
		case w.served <- struct{}{}:
		default: // nobody counts
		}
	}()
	ctx := genericapirequest.WithNamespace(req.Context(), "team")
	if w.caller != nil {
		ctx = genericapirequest.WithUser(ctx, w.caller)
	}
	query := req.URL.Query()
	options := &rukpak.BundleContentOptions{
		Digest: query.Get("digest"), Attempt: query.Get("attempt"), Format: query.Get("format"), Recursive: query.Get("recursive") == "true", After: query.Get("after"),
	}
	name, inside, ok := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
	if ok {
		options.Path = "/" + strings.TrimPrefix(inside, "/")
	}
	handler, err := w.rest.Connect(ctx, name, options, responder{rw})
	if err != nil {
		w.t.Error(err)
		return
	}
	handler.ServeHTTP(rw, req.WithContext(ctx))
}

type responder struct{ http.ResponseWriter }

func (r responder) Object(code int, obj runtime.Object) {
	r.WriteHeader(code)
	_ = json.NewEncoder(r).Encode(obj)
}

func (r responder) Error(err error) {
	var s apierrors.APIStatus
	if !errors.As(err, &s) {
		s = apierrors.NewInternalError(err)
	}
	status := s.Status()
	r.WriteHeader(int(status.Code))
	_ = json.NewEncoder(r).Encode(status)
}

// answer is a response that was read to its end.
type answer struct {
	code   int
	header http.Header
	body   []byte
}

// status decodes the body of an error.
func (a answer) status(t testing.TB) metav1.Status {
	t.Helper()
	var s metav1.Status
	if err := json.Unmarshal(a.body, &s); err != nil {
		t.Fatalf("%d without a Status: %q", a.code, a.body)
	}
	return s
}

// cause returns the type of the first cause of an error, and the field that it names.
func (a answer) cause(t testing.TB) (kind, field string) {
	t.Helper()
	if s := a.status(t); s.Details != nil && len(s.Details.Causes) > 0 {
		return string(s.Details.Causes[0].Type), s.Details.Causes[0].Field
	}
	return "", ""
}

func (w *world) do(method, path string, body []byte, headers ...string) answer {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.server.URL+"/"+path, bytes.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := w.server.Client().Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	got, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := res.Body.Close(); err != nil {
		w.t.Fatal(err)
	}
	<-w.served
	return answer{res.StatusCode, res.Header, got}
}

// files lists what the store has on disk: blobs, and what is being written.
func (w *world) files() []string {
	w.t.Helper()
	var found []string
	err := filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == "index" {
			return fs.SkipDir
		}
		if err == nil && !d.IsDir() && d.Name() != "lock" {
			found = append(found, d.Name())
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return found
}

// blob is the file of a content.
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

// add makes a bundle that nobody has worked on.
func (w *world) add(b *rukpak.Bundle) *rukpak.Bundle {
	b.Namespace, b.Generation = "team", 1
	if b.UID == "" {
		b.UID = "uid-1"
	}
	if b.Spec.ProvisionerClassName == "" {
		b.Spec.ProvisionerClassName = "raw"
	}
	conditions.Begin(&b.Status.Conditions, 1)
	w.bundles.all[b.Name] = b
	return b
}

func (w *world) addUpload(name string) *rukpak.Bundle {
	return w.add(&rukpak.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       rukpak.BundleSpec{Source: rukpak.BundleSource{Type: rukpak.SourceTypeUpload, Upload: &rukpak.UploadSource{}}},
	})
}

// addImage makes a bundle whose attempt has a pod.
func (w *world) addImage(name string) *rukpak.Bundle {
	b := w.add(&rukpak.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: rukpak.BundleSpec{Source: rukpak.BundleSource{
			Type: rukpak.SourceTypeImage, Image: &rukpak.ImageSource{Reference: "registry.example/app@sha256:" + strings.Repeat("1", 64)},
		}},
	})
	b.Status.Unpack = &rukpak.UnpackStatus{Generation: 1, Attempt: 1, Nonce: "nonce", Mode: rukpak.UnpackModeImageVolume, PodName: "unpack", PodUID: "pod-uid"}
	return b
}

// now is the bundle as it is stored.
func (w *world) now(name string) *rukpak.Bundle {
	w.t.Helper()
	b, err := w.bundles.Get(w.t.Context(), name)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// podCaller is a service account whose token is bound to a pod.
func podCaller(namespace, pod, uid string) user.Info {
	return &user.DefaultInfo{Name: serviceaccount.MakeUsername(namespace, "default"), Extra: map[string][]string{
		serviceaccount.PodNameKey: {pod}, serviceaccount.PodUIDKey: {uid},
	}}
}

func loopback() user.Info {
	return &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}
}

type memoryBundles struct {
	sync.Mutex
	all map[string]*rukpak.Bundle
	// meanwhile, if set, is called once before a commit reads: what others do in between.
	meanwhile func(*rukpak.Bundle)
	err       error // of commits
	get       error
}

func (m *memoryBundles) Get(_ context.Context, name string) (*rukpak.Bundle, error) {
	m.Lock()
	defer m.Unlock()
	if m.get != nil {
		return nil, m.get
	}
	b, ok := m.all[name]
	if !ok {
		return nil, apierrors.NewNotFound(rukpak.Resource("bundles"), name)
	}
	return b.DeepCopy(), nil
}

func (m *memoryBundles) Commit(ctx context.Context, name string, change func(*rukpak.Bundle) error) (*rukpak.Bundle, error) {
	if genericapirequest.NamespaceValue(ctx) != "team" {
		return nil, errors.New("no namespace in the context")
	}
	if m.err != nil {
		return nil, m.err
	}
	if f := m.meanwhile; f != nil {
		m.meanwhile = nil
		m.Lock()
		f(m.all[name])
		m.Unlock()
	}
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

type memoryClasses map[string]*rukpak.ProvisionerClass

func (m memoryClasses) Class(_ context.Context, name string) (*rukpak.ProvisionerClass, error) {
	if c, ok := m[name]; ok {
		return c, nil
	}
	return nil, apierrors.NewNotFound(rukpak.Resource("provisionerclasses"), name)
}

type memoryReferences struct {
	sync.Mutex
	all map[reference.Ref]bool
	err error
}

func (m *memoryReferences) Add(_ context.Context, ref reference.Ref, _, _ string) error {
	m.Lock()
	defer m.Unlock()
	if m.err == nil {
		m.all[ref] = true
	}
	return m.err
}

func (m *memoryReferences) Has(_ context.Context, ref reference.Ref) (bool, error) {
	m.Lock()
	defer m.Unlock()
	return m.all[ref], m.err
}

func (m *memoryReferences) Stores(context.Context) ([]string, error) {
	m.Lock()
	defer m.Unlock()
	var stores []string
	for ref := range m.all {
		stores = append(stores, ref.Store)
	}
	slices.Sort(stores)
	return slices.Compact(stores), m.err
}

func (m *memoryReferences) Remove(_ context.Context, ref reference.Ref) error {
	m.Lock()
	defer m.Unlock()
	if m.err == nil {
		delete(m.all, ref)
	}
	return m.err
}

func (m *memoryReferences) Settle(context.Context, string, string) error { return nil }

func (m *memoryReferences) StartRemoving(_ context.Context, store, digest string) (reference.Tombstone, bool, error) {
	return reference.Tombstone{Store: store, Digest: digest, State: reference.Deleting}, true, nil
}

func (m *memoryReferences) Unmark(context.Context, reference.Tombstone) (bool, error) {
	return true, nil
}

// faultyStore fails where it is told to.
type faultyStore struct {
	content.Store
	create, write, commit, stat, delete error
	open, index, putIndex               error
	room                                func() error
	// opened, if set, stands in front of what is read.
	opened func(io.ReadCloser) io.ReadCloser
	// created, if set, is told of every Create.
	created func(context.Context)
}

func (f *faultyStore) Open(ctx context.Context, digest string, offset, length int64) (io.ReadCloser, error) {
	if f.open != nil {
		return nil, f.open
	}
	r, err := f.Store.Open(ctx, digest, offset, length)
	if err == nil && f.opened != nil {
		r = f.opened(r)
	}
	return r, err
}

func (f *faultyStore) Delete(ctx context.Context, digest string) error {
	if f.delete != nil {
		return f.delete
	}
	return f.Store.Delete(ctx, digest)
}

func (f *faultyStore) OpenIndex(ctx context.Context, digest string, offset, length int64) (io.ReadCloser, error) {
	if f.index != nil {
		return nil, f.index
	}
	return f.Store.OpenIndex(ctx, digest, offset, length)
}

func (f *faultyStore) PutIndex(ctx context.Context, digest string, r io.Reader, size int64) error {
	if f.putIndex != nil {
		return f.putIndex
	}
	return f.Store.PutIndex(ctx, digest, r, size)
}

func (f *faultyStore) Room(ctx context.Context) error {
	if f.room != nil {
		return f.room()
	}
	return f.Store.Room(ctx)
}

func (f *faultyStore) Create(ctx context.Context) (content.Writer, error) {
	if f.created != nil {
		f.created(ctx)
	}
	if f.create != nil {
		return nil, f.create
	}
	w, err := f.Store.Create(ctx)
	return &faultyWriter{w, f}, err
}

func (f *faultyStore) Stat(ctx context.Context, digest string) (content.Info, error) {
	if f.stat != nil {
		return content.Info{}, f.stat
	}
	return f.Store.Stat(ctx, digest)
}

type faultyWriter struct {
	content.Writer
	of *faultyStore
}

func (f *faultyWriter) Write(p []byte) (int, error) {
	if f.of.write != nil {
		return 0, f.of.write
	}
	return f.Writer.Write(p)
}

func (f *faultyWriter) Commit(ctx context.Context, digest string) error {
	if f.of.commit != nil {
		return errors.Join(f.of.commit, f.Abort())
	}
	return f.Writer.Commit(ctx, digest)
}

// archive is a tar of files, sorted by name.
func archive(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var headers []tar.Header
	for _, name := range slices.Sorted(maps.Keys(files)) {
		headers = append(headers, tar.Header{Name: name, Mode: 0o644, Typeflag: tar.TypeReg, Size: int64(len(files[name])), Linkname: files[name]})
	}
	return rawArchive(t, headers...)
}

// rawArchive is a tar of entries; the content of a file is its Linkname.
func rawArchive(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, h := range headers {
		var body string
		if h.Typeflag == tar.TypeReg {
			body, h.Linkname = h.Linkname, ""
			h.Size = int64(len(body))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

// canonical is the archive that the server makes of a tar.
func canonical(t testing.TB, in []byte) ([]byte, tarball.Summary) {
	t.Helper()
	var out bytes.Buffer
	summary, err := tarball.Canonicalize(t.Context(), &out, bytes.NewReader(in), tarball.Options{Scratch: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), summary
}

func available(b *rukpak.Bundle) bool {
	return meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionContentAvailable)
}
