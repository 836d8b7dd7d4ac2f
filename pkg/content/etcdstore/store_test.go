// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcdstore_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/contenttest"
	"rukpak.io/apiserver/pkg/content/etcdstore"
	"rukpak.io/apiserver/pkg/content/etcdtest"
)

const (
	prefix = "/test/place"
	// childEndpoint tells a process of this test binary to be a writer that is going to be killed.
	childEndpoint = "ETCDSTORE_TEST_CHILD"
)

func TestMain(m *testing.M) {
	if endpoint := os.Getenv(childEndpoint); endpoint != "" {
		if err := child(endpoint); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(endpoint string) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	if err != nil {
		return err
	}
	s := etcdstore.New(client, prefix, etcdstore.DefaultCapacity)
	return errors.Join(contenttest.Child(s), s.Close(), client.Close())
}

func TestStore(t *testing.T) {
	contenttest.Run(t, func(t *testing.T) contenttest.Harness {
		client, endpoint := etcdtest.StartServer(t, 0)
		return contenttest.Harness{
			Open: func(*testing.T) (content.Store, func() error) {
				s := etcdstore.New(client, prefix, etcdstore.DefaultCapacity)
				return s, s.Close
			},
			Borders: []int64{etcdstore.ChunkSize, 5 * etcdstore.ChunkSize},
			Small: func(t *testing.T) (content.Store, int64) {
				return etcdstore.New(client, "/test/small", 3<<20), 3 << 20
			},
			Faulty: func(t *testing.T, next func() contenttest.Fault) content.Store {
				s := etcdstore.New(faultyKV{client, next}, prefix, etcdstore.DefaultCapacity)
				s.SetPatience(200 * time.Millisecond)
				return s
			},
			Failpoints: []string{"etcdstore/after-reserve", "etcdstore/after-chunk", "etcdstore/after-commit", "etcdstore/after-delete"},
			Debris:     func(t *testing.T) []string { return debris(t, client) },
			Child: func(t *testing.T) *exec.Cmd {
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				cmd.Env = append(os.Environ(), childEndpoint+"="+endpoint)
				return cmd
			},
		}
	})
}

// debris names the keys that nothing leads to, and says so if the account does not match.
func debris(t *testing.T, client *clientv3.Client) []string {
	t.Helper()
	resp, err := client.Get(t.Context(), prefix, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	named, sizes := map[string]bool{}, int64(0)
	for _, kv := range resp.Kvs {
		if m, ok := etcdstore.ParseManifest(t, kv); ok {
			sizes += m.Size
			for i := range (m.Size + etcdstore.ChunkSize - 1) / etcdstore.ChunkSize {
				named[fmt.Sprintf("%s/%08x", m.Upload, i)] = true
			}
		}
	}
	var left []string
	for _, kv := range resp.Kvs {
		rest := strings.TrimPrefix(string(kv.Key), prefix+"/")
		folder, rest, _ := strings.Cut(rest, "/")
		switch folder {
		case "chunks":
			if !named[rest] {
				left = append(left, string(kv.Key))
			}
			delete(named, rest)
		case "mark", "blobs", "indexes":
		case "used":
			if n, err := strconv.ParseInt(string(kv.Value), 10, 64); err != nil || n < 0 {
				t.Errorf("in use are %q", kv.Value)
			} else {
				sizes -= n
			}
		default:
			left = append(left, string(kv.Key))
		}
	}
	for key := range named {
		left = append(left, "missing: "+key)
	}
	if sizes != 0 {
		left = append(left, fmt.Sprintf("%d bytes are not accounted", sizes))
	}
	return left
}
