// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcdstore

import (
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Manifest is the value of a blob or an index.
type Manifest = manifest

// ParseManifest reads a key that is a manifest.
func ParseManifest(t *testing.T, kv *mvccpb.KeyValue) (*Manifest, bool) {
	t.Helper()
	if key := string(kv.Key); !strings.Contains(key, "/"+blobs+"/") && !strings.Contains(key, "/"+indexes+"/") {
		return nil, false
	}
	m, err := parseManifest(kv)
	if err != nil {
		t.Fatal(err)
	}
	return m, true
}

// SetPatience says for how long requests that fail are repeated.
func (s *Store) SetPatience(d time.Duration) { s.patience = d }

// Errors that nobody has to tell from others but a test.
var (
	ErrSwept    = errSwept
	ErrReplaced = errReplaced
)

// Kept is how many chunks are in memory, and At at how many readers are.
func (s *Store) Kept() (kept, at int) {
	s.chunks.mu.Lock()
	defer s.chunks.mu.Unlock()
	return s.chunks.recent.Len(), len(s.chunks.all)
}

// MaxChunks is how many chunks may be in memory.
const MaxChunks = maxChunks

// MaxFlights is how many chunks of an upload may be on their way.
const MaxFlights = maxFlights
