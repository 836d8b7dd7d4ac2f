// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcdstore

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"rukpak.io/apiserver/pkg/content"
)

// Folders and keys below the prefix.
const (
	blobs   = "blobs"
	indexes = "indexes"
	chunks  = "chunks"
	uploads = "uploads"
	used    = "used"
	mark    = "mark"
)

// manifest says where the bytes of a blob or of an index are.
type manifest struct {
	Upload    string    `json:"upload"`
	Size      int64     `json:"size"`
	ChunkSize int64     `json:"chunkSize"`
	Time      time.Time `json:"time"`
}

// reservation is the value of an upload: its space, and when it last asked for some.
type reservation struct {
	Bytes int64     `json:"bytes"`
	Time  time.Time `json:"time"`
}

// key is that of the manifest of a digest.
func (s *Store) key(ctx context.Context, folder, digest string) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	hex, err := content.ParseDigest(digest)
	if err != nil {
		return "", err
	}
	return s.join(folder, hex), nil
}

func (s *Store) join(parts ...string) string {
	return s.prefix + "/" + strings.Join(parts, "/")
}

func (s *Store) chunkKey(upload string, number int64) string {
	return s.join(chunks, upload, fmt.Sprintf("%08x", number))
}

func (s *Store) deleteChunks(upload string) clientv3.Op {
	return clientv3.OpDelete(s.join(chunks, upload)+"/", clientv3.WithPrefix())
}

func parseManifest(kv *mvccpb.KeyValue) (*manifest, error) {
	m := &manifest{}
	if err := parse(kv, m); err != nil {
		return nil, err
	}
	if m.Upload == "" || m.Size < 0 || m.ChunkSize <= 0 {
		return nil, fmt.Errorf("key %q: not a manifest", kv.Key)
	}
	return m, nil
}

func parse(kv *mvccpb.KeyValue, into any) error {
	if err := json.Unmarshal(kv.Value, into); err != nil {
		return fmt.Errorf("key %q: %w", kv.Key, err)
	}
	return nil
}

func parseUsed(kv *mvccpb.KeyValue) (int64, error) {
	n, err := strconv.ParseInt(string(kv.Value), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("key %q: %w", kv.Key, err)
	}
	return n, nil
}
