// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcdstore_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/contenttest"
	"rukpak.io/apiserver/pkg/content/etcdstore"
	"rukpak.io/apiserver/pkg/content/etcdtest"
)

func put(t *testing.T, s content.Store, b contenttest.Blob) string {
	t.Helper()
	digest, err := b.Put(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

// compact removes every revision before the latest.
func compact(t *testing.T, client *clientv3.Client) {
	t.Helper()
	resp, err := client.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Compact(t.Context(), resp.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
}

// TestReaderAcrossCompaction: what a reader reads is safe until etcd is compacted, and then if it is still there.
func TestReaderAcrossCompaction(t *testing.T) {
	for _, tc := range []struct {
		name  string
		index bool
		after func(t *testing.T, s content.Store, b contenttest.Blob)
		want  error // nil: all bytes
	}{
		{"nothing happened", false, func(*testing.T, content.Store, contenttest.Blob) {}, nil},
		{"replaced", false, func(t *testing.T, s content.Store, b contenttest.Blob) { put(t, s, b) }, nil},
		{"deleted and back", false, func(t *testing.T, s content.Store, b contenttest.Blob) {
			if err := s.Delete(t.Context(), b.Digest()); err != nil {
				t.Fatal(err)
			}
			put(t, s, b)
		}, nil},
		{"deleted", false, func(t *testing.T, s content.Store, b contenttest.Blob) {
			if err := s.Delete(t.Context(), b.Digest()); err != nil {
				t.Fatal(err)
			}
		}, content.ErrNotFound},
		{"an index", true, func(*testing.T, content.Store, contenttest.Blob) {}, nil},
		{"an index that was replaced", true, func(t *testing.T, s content.Store, b contenttest.Blob) {
			if err := s.PutIndex(t.Context(), b.Digest(), b.Reader(), b.Size); err != nil {
				t.Fatal(err)
			}
		}, etcdstore.ErrReplaced},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client := etcdtest.Start(t)
			s := etcdstore.New(client, prefix, etcdstore.DefaultCapacity)
			b := contenttest.Blob{Seed: 1, Size: 3 * etcdstore.ChunkSize}
			digest, read := put(t, s, b), s.Open
			if tc.index {
				read = s.OpenIndex
				if err := s.PutIndex(t.Context(), digest, b.Reader(), b.Size); err != nil {
					t.Fatal(err)
				}
			}
			r, err := read(t.Context(), digest, 0, -1)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 100)
			if _, err := io.ReadFull(r, got); err != nil {
				t.Fatal(err)
			}
			tc.after(t, s, b)
			compact(t, client)
			rest, err := io.ReadAll(r)
			if !errors.Is(err, tc.want) || tc.want == nil && !bytes.Equal(append(got, rest...), b.Bytes(t)) {
				t.Errorf("then %d bytes, %v; want %v", len(rest), err, tc.want)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDamage: no byte that is not the one that was stored is taken for the end of the content.
func TestDamage(t *testing.T) {
	client := etcdtest.Start(t)
	for name, damage := range map[string]func(key, value string) clientv3.Op{
		"another byte":     func(key, value string) clientv3.Op { return clientv3.OpPut(key, "x"+value[1:]) },
		"a shorter chunk":  func(key, value string) clientv3.Op { return clientv3.OpPut(key, value[1:]) },
		"a chunk is gone":  func(key, value string) clientv3.Op { return clientv3.OpDelete(key) },
		"a longer chunk":   func(key, value string) clientv3.Op { return clientv3.OpPut(key, value+"x") },
		"an empty chunk":   func(key, value string) clientv3.Op { return clientv3.OpPut(key, "") },
		"the first is all": func(key, value string) clientv3.Op { return clientv3.OpPut(key, value+value) },
	} {
		t.Run(name, func(t *testing.T) {
			prefix := "/damage/" + strings.ReplaceAll(name, " ", "-")
			s := etcdstore.New(client, prefix, etcdstore.DefaultCapacity)
			digest := put(t, s, contenttest.Blob{Seed: 1, Size: 2*etcdstore.ChunkSize + 5})
			resp, err := client.Get(t.Context(), prefix+"/chunks/", clientv3.WithPrefix())
			if err != nil || len(resp.Kvs) != 3 {
				t.Fatalf("%d chunks, %v", len(resp.Kvs), err)
			}
			last := resp.Kvs[2]
			if _, err := client.Do(t.Context(), damage(string(last.Key), string(last.Value))); err != nil {
				t.Fatal(err)
			}
			r, err := s.Open(t.Context(), digest, 0, -1)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, r); !errors.Is(err, content.ErrDigestMismatch) {
				t.Errorf("read: %v", err)
			}
		})
	}
}

// TestQuota: an etcd without space says so in words that a user understands, and is asked again later.
func TestQuota(t *testing.T) {
	client, endpoint := etcdtest.StartServer(t, 16<<20)
	s := etcdstore.New(client, prefix, etcdstore.DefaultCapacity)
	kept := contenttest.Blob{Seed: 1, Size: 1000}
	digest := put(t, s, kept)
	if err := s.Room(t.Context()); err != nil {
		t.Errorf("room at first: %v", err)
	}
	_, err := contenttest.Blob{Seed: 2, Size: 32 << 20}.Put(t.Context(), s)
	if !errors.Is(err, content.ErrNoSpace) || !strings.Contains(err.Error(), "quota") {
		t.Errorf("32 MiB where the quota is 16 MiB: %v", err)
	}
	if err := s.Room(t.Context()); !errors.Is(err, content.ErrNoSpace) {
		t.Errorf("room then: %v", err)
	}
	r, err := s.Open(t.Context(), digest, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, kept.Bytes(t)) {
		t.Errorf("what was there: %d bytes, %v", len(got), err)
	}
	// Deleting still works, and what docs/stores.md tells to do brings all back.
	if err := s.Delete(t.Context(), digest); err != nil {
		t.Errorf("delete: %v", err)
	}
	if chunks, err := client.Get(t.Context(), prefix+"/chunks/", clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil || chunks.Count > 0 {
		t.Errorf("%d chunks are left, %v", chunks.Count, err)
	}
	compact(t, client)
	// The client in the process of the server cannot do the next.
	remote, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer remote.Close()
	if _, err := remote.Defragment(t.Context(), endpoint); err != nil {
		t.Fatal(err)
	}
	alarms, err := remote.AlarmList(t.Context())
	if err != nil || len(alarms.Alarms) == 0 {
		t.Fatalf("alarms: %v, %v", alarms, err)
	}
	if _, err := remote.AlarmDisarm(t.Context(), (*clientv3.AlarmMember)(alarms.Alarms[0])); err != nil {
		t.Fatal(err)
	}
	if err := s.Sweep(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	put(t, s, kept)
	if left := debris(t, client); len(left) > 0 {
		t.Errorf("debris is left: %q", left)
	}
}

// TestCapacity: the capacity holds for all that is stored and on its way.
func TestCapacity(t *testing.T) {
	client := etcdtest.Start(t)
	const capacity = 4 * etcdstore.ChunkSize
	s := etcdstore.New(client, prefix, capacity)
	w, err := s.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 3*etcdstore.ChunkSize)); err != nil {
		t.Fatal(err)
	}
	_, err = contenttest.Blob{Seed: 1, Size: 3 * etcdstore.ChunkSize}.Put(t.Context(), s)
	if !errors.Is(err, content.ErrNoSpace) {
		t.Errorf("3 MiB of 4 MiB when 3 MiB are on their way: %v", err)
	}
	if _, err := w.Write(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(t.Context(), w.Digest()); err != nil {
		t.Fatal(err)
	}
	if used, err := s.Used(t.Context()); err != nil || used != 3*etcdstore.ChunkSize+1 {
		t.Errorf("in use are %d bytes, %v", used, err)
	}
	put(t, s, contenttest.Blob{Seed: 2, Size: etcdstore.ChunkSize - 1})
	if err := s.Room(t.Context()); !errors.Is(err, content.ErrNoSpace) {
		t.Errorf("room when all is taken: %v", err)
	}
	// The same bytes again take no more.
	put(t, s, contenttest.Blob{Seed: 2, Size: etcdstore.ChunkSize - 1})
	if err := s.Delete(t.Context(), w.Digest()); err != nil {
		t.Fatal(err)
	}
	if used, err := s.Used(t.Context()); err != nil || used != etcdstore.ChunkSize-1 {
		t.Errorf("in use are %d bytes, %v", used, err)
	}
}

// TestSweptWriter: a writer that was taken for dead leaves nothing, whenever it comes back.
func TestSweptWriter(t *testing.T) {
	client := etcdtest.Start(t)
	s := etcdstore.New(client, prefix, etcdstore.DefaultCapacity)
	for name, more := range map[string]int{"commit": 0, "write": etcdstore.ChunkSize, "write past what it reserved": 20 * etcdstore.ChunkSize} {
		w, err := s.Create(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, 3*etcdstore.ChunkSize)); err != nil {
			t.Fatal(err)
		}
		if err := s.Sweep(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, etcdstore.ChunkSize)); err != nil {
			t.Errorf("%s: a sweep of what is older ended it: %v", name, err)
		}
		if err := s.Sweep(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		_, err = w.Write(make([]byte, more))
		err = errors.Join(err, w.Commit(t.Context(), w.Digest()))
		if !errors.Is(err, etcdstore.ErrSwept) {
			t.Errorf("%s: %v", name, err)
		}
		if left := debris(t, client); len(left) > 0 {
			t.Errorf("%s: debris is left: %q", name, left)
		}
	}
}
