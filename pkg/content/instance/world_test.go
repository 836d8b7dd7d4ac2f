// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"rukpak.io/apiserver/pkg/content/filesystem"
	"rukpak.io/apiserver/pkg/content/instance"
	"rukpak.io/apiserver/pkg/content/reference"
)

// object keeps the mark of a cluster.
type object struct {
	mu   sync.Mutex
	mark []byte
	err  error
}

func (o *object) ReadMark(context.Context) ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mark, o.err
}

func (o *object) WriteMark(_ context.Context, mark []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.mark = mark
	}
	return o.err
}

// world is an etcd, stores and a cluster. Several share one etcd, each under a prefix of its own.
type world struct {
	t       *testing.T
	client  *clientv3.Client
	prefix  string
	dir     string
	names   []string // of the stores
	open    map[string]*filesystem.Store
	cluster *object
	now     time.Time
	// restored is the way back that a test keeps.
	restored func()
	// around wraps what a guard writes to.
	around func(kv clientv3.KV, name string, m instance.Marks) (clientv3.KV, instance.Marks)
}

func newWorld(t *testing.T, client *clientv3.Client, prefix string) *world {
	w := &world{t: t, client: client, prefix: prefix, dir: t.TempDir(), names: []string{"default"}, open: map[string]*filesystem.Store{}, cluster: &object{}, now: time.Unix(1e9, 0)}
	w.emptyEtcd()
	t.Cleanup(w.closeStores)
	return w
}

func (w *world) content() string { return w.prefix + "/content" }
func (w *world) objects() string { return w.prefix + "/registry/" }

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) folder(store string) string { return filepath.Join(w.dir, store) }

func (w *world) closeStores() {
	for name, s := range w.open {
		w.must(s.Close())
		delete(w.open, name)
	}
}

func (w *world) store(name string) *filesystem.Store {
	w.t.Helper()
	if w.open[name] == nil {
		s, err := filesystem.Open(w.folder(name))
		w.must(err)
		w.open[name] = s
	}
	return w.open[name]
}

// markedStore is a store whose marks are wrapped.
type markedStore struct {
	instance.Store
	marks instance.Marks
}

func (m markedStore) ReadMark(ctx context.Context) ([]byte, error) { return m.marks.ReadMark(ctx) }
func (m markedStore) WriteMark(ctx context.Context, mark []byte) error {
	return m.marks.WriteMark(ctx, mark)
}

// guard is a new process over what is there.
func (w *world) guard(change func(*instance.Config)) *instance.Guard {
	w.t.Helper()
	records := reference.New(w.client, w.content(), w.clock)
	config := instance.Config{
		KV: w.client, Prefix: w.content(), Objects: w.objects(), Stores: map[string]instance.Store{}, Cluster: w.cluster, ClusterTitle: "the cluster", Now: w.clock,
		Referred: func(ctx context.Context, store string) (bool, error) {
			for _, err := range records.List(ctx, store) {
				return err == nil, err
			}
			return false, nil
		},
	}
	for _, name := range w.names {
		config.Stores[name] = w.store(name)
		if w.around != nil {
			var marks instance.Marks
			config.KV, marks = w.around(config.KV, name, w.store(name))
			config.Stores[name] = markedStore{w.store(name), marks}
		}
	}
	if w.around != nil {
		_, config.Cluster = w.around(config.KV, "cluster", w.cluster)
	}
	if change != nil {
		change(&config)
	}
	g, err := instance.New(config)
	w.must(err)
	return g
}

func (w *world) clock() time.Time { return w.now }

// check is what a new process finds.
func (w *world) check() error { return w.guard(nil).Check(w.t.Context()) }

func (w *world) fits() {
	w.t.Helper()
	w.must(w.check())
}

// work is what happens in a time of use: the API writes, and a server starts again.
func (w *world) work() {
	w.t.Helper()
	w.now = w.now.Add(10 * time.Minute)
	w.putObject()
	w.fits()
}

func (w *world) putObject() {
	w.t.Helper()
	_, err := w.client.Put(w.t.Context(), w.objects()+"bundles/app", "{}")
	w.must(err)
}

// putBlob stores content without a record, putRecord the record of content that is not stored.
func (w *world) putBlob(store string) {
	w.t.Helper()
	b, err := w.store(store).Create(w.t.Context())
	w.must(err)
	_, err = b.Write([]byte("content"))
	w.must(err)
	w.must(b.Commit(w.t.Context(), b.Digest()))
}

func (w *world) putRecord(store string) {
	w.t.Helper()
	records := reference.New(w.client, w.content(), w.clock)
	w.must(records.Add(w.t.Context(), reference.Ref{Store: store, Digest: "sha256:" + strings.Repeat("0", 64), BundleUID: "uid"}, "team", "app"))
}

func (w *world) emptyEtcd() {
	w.t.Helper()
	_, err := w.client.Delete(w.t.Context(), w.prefix+"/", clientv3.WithPrefix())
	w.must(err)
}

// saveEtcd returns the restoration of what etcd has now.
func (w *world) saveEtcd() func() {
	w.t.Helper()
	resp, err := w.client.Get(w.t.Context(), w.prefix+"/", clientv3.WithPrefix())
	w.must(err)
	return func() {
		w.t.Helper()
		w.emptyEtcd()
		for _, kv := range resp.Kvs {
			_, err := w.client.Put(w.t.Context(), string(kv.Key), string(kv.Value))
			w.must(err)
		}
	}
}

// saveStore returns the restoration of what a store has now. The folders stay, as they do below a running server.
func (w *world) saveStore(name string) func() {
	w.t.Helper()
	saved := map[string][]byte{}
	w.eachFile(name, func(path string) error {
		raw, err := os.ReadFile(path)
		saved[path] = raw
		return err
	})
	folder := w.folder(name)
	return func() {
		w.t.Helper()
		w.emptyStore(name)
		w.store(name)
		for path, raw := range saved {
			w.must(os.WriteFile(w.folder(name)+strings.TrimPrefix(path, folder), raw, 0o600))
		}
	}
}

func (w *world) emptyStore(name string) {
	w.t.Helper()
	w.eachFile(name, os.Remove)
}

// blobDigest is that of the one content that tests store.
var blobDigest = fmt.Sprintf("%x", sha256.Sum256([]byte("content")))

// eachFile visits the mark and the content of a store, as far as they are there.
func (w *world) eachFile(name string, visit func(path string) error) {
	w.t.Helper()
	w.store(name)
	for _, file := range []string{"mark", filepath.Join("blobs", "sha256", blobDigest[:2], blobDigest)} {
		path := filepath.Join(w.folder(name), file)
		if _, err := os.Stat(path); err == nil {
			w.must(visit(path))
		}
	}
}

func (w *world) saveCluster() func() {
	mark := w.cluster.mark
	return func() { w.cluster.mark = mark }
}

// disagrees returns what a new process finds wrong, as PLACE REASON.
func (w *world) disagrees() (*instance.Disagreement, string) {
	w.t.Helper()
	err := w.check()
	var d *instance.Disagreement
	if err == nil {
		return nil, ""
	}
	if !errors.As(err, &d) {
		w.t.Fatal(err)
	}
	var parts []string
	for _, f := range d.Findings {
		parts = append(parts, f.Place+" "+string(f.Reason))
		if !strings.Contains(d.Error(), f.Message) {
			w.t.Errorf("the error does not say %q", f.Message)
		}
	}
	if !strings.Contains(d.Error(), "--accept-data-loss="+d.Token) {
		w.t.Errorf("the error does not say how to accept the loss: %v", d)
	}
	return d, strings.Join(parts, ", ")
}

// accept is a process that is told to accept.
func (w *world) accept(token string) error {
	return w.guard(func(c *instance.Config) { c.Accept = token }).Check(w.t.Context())
}
