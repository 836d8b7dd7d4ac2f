// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"rukpak.io/apiserver/pkg/content/etcdtest"
	"rukpak.io/apiserver/pkg/content/filesystem"
	"rukpak.io/apiserver/pkg/content/reference"
)

const (
	grace     = time.Hour
	storeName = "default"
)

// world is a store in a folder and the records of it in a real etcd.
type world struct {
	t       *testing.T
	dir     string
	store   *filesystem.Store
	records *reference.Records
	named   []Named
	now     time.Time
}

func newWorld(t *testing.T) *world { return newWorldOn(t, etcdtest.Start(t)) }

// newWorldOn makes a world whose records have a prefix of their own in an etcd.
func newWorldOn(t *testing.T, client *clientv3.Client) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), now: time.Now()}
	store, err := filesystem.Open(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	w.store = store
	w.records = reference.New(client, "/"+strings.ReplaceAll(t.Name(), "/", "-"), func() time.Time { return w.now })
	return w
}

func (w *world) checker() *Checker {
	return &Checker{
		Stores: map[string]Store{storeName: w.store}, Records: w.records, Grace: grace, Now: func() time.Time { return w.now },
		Named:    func(context.Context) ([]Named, error) { return w.named, nil },
		Progress: func(string, int, int) {},
	}
}

// blob stores bytes and returns their digest.
func (w *world) blob(data []byte) string {
	w.t.Helper()
	writer, err := w.store.Create(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := writer.Write(data); err != nil {
		w.t.Fatal(err)
	}
	digest := writer.Digest()
	if err := writer.Commit(w.t.Context(), digest); err != nil {
		w.t.Fatal(err)
	}
	return digest
}

func (w *world) record(uid, digest string) {
	w.t.Helper()
	if err := w.records.Add(w.t.Context(), reference.Ref{Store: storeName, Digest: digest, BundleUID: uid}, "team", uid); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) name(uid, digest string, size int) {
	w.named = append(w.named, Named{BundleUID: uid, Namespace: "team", Name: uid, Digest: digest, Size: int64(size)})
}

// bundle makes a bundle with content, as it should be.
func (w *world) bundle(uid string, data []byte) string {
	w.t.Helper()
	digest := w.blob(data)
	w.record(uid, digest)
	w.name(uid, digest, len(data))
	return digest
}

func (w *world) file(digest string) string {
	hex := strings.TrimPrefix(digest, "sha256:")
	return filepath.Join(w.dir, "blobs", "sha256", hex[:2], hex)
}

// flip changes one bit in the middle of a blob, and leaves the time, as a disk does.
func (w *world) flip(digest string) {
	w.t.Helper()
	data, err := os.ReadFile(w.file(digest))
	if err != nil {
		w.t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(w.file(digest), data, 0o600); err != nil {
		w.t.Fatal(err)
	}
	old := w.now.Add(-time.Hour)
	if err := os.Chtimes(w.file(digest), old, old); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) remove(digest string) {
	w.t.Helper()
	if err := os.Remove(w.file(digest)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) truncate(digest string) {
	w.t.Helper()
	if err := os.Truncate(w.file(digest), 1); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) has(digest string) bool {
	_, err := os.Stat(w.file(digest))
	return err == nil
}

// data is different for each name, and longer than one step of reading.
func data(name string) []byte { return bytes.Repeat([]byte(name), stepSize/len(name)+10) }
