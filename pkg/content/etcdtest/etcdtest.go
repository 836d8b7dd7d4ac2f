// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package etcdtest runs a real etcd inside a test.
package etcdtest

import (
	"net/url"
	"os"
	"path/filepath"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
)

// keptEntries is how many writes etcd keeps in memory.
const keptEntries = 64

// Start starts an etcd of one member that lives as long as the test, and returns a
// client that speaks to it in process.
func Start(t testing.TB) *clientv3.Client {
	t.Helper()
	client, _ := StartServer(t, 0)
	return client
}

// StartServer starts an etcd as Start does, with a quota of so many bytes (0: the default), and
// also returns the endpoint at which other processes reach it.
func StartServer(t testing.TB, quota int64) (client *clientv3.Client, endpoint string) {
	t.Helper()
	// Not t.TempDir: the name of a test makes a path that is too long for a socket.
	dir, err := os.MkdirTemp("", "etcdtest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(dir, "data")
	cfg.LogLevel = "fatal"
	clients := url.URL{Scheme: "unix", Path: filepath.Join(dir, "client")}
	peers := url.URL{Scheme: "unix", Path: filepath.Join(dir, "peer")}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{clients}, []url.URL{clients}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peers}, []url.URL{peers}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.UnsafeNoFsync = true // what a test writes need not outlive the machine
	if cfg.QuotaBackendBytes = quota; quota > 0 {
		// What is still to be written to the database does not count for the quota: a quick test would be done before it is.
		cfg.BackendBatchLimit = 1
	}
	cfg.SnapshotCount, cfg.SnapshotCatchUpEntries = keptEntries, keptEntries
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	select {
	case <-etcd.Server.ReadyNotify():
	case err := <-etcd.Err():
		t.Fatal(err)
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
	client = v3client.New(etcd.Server)
	// It has no connection; all that Close reports is that it cancelled its own context.
	t.Cleanup(func() { _ = client.Close() })
	return client, "unix://" + clients.Path
}
