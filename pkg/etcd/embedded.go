// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package etcd runs an etcd inside the process, for servers that have none of their own.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const (
	// DefaultQuota is how large the database may get, in bytes: what etcd's authors suggest as the most.
	DefaultQuota = 8 << 30
	// MinQuota and MaxQuota bound what may be chosen.
	MinQuota = 16 << 20
	MaxQuota = 32 << 30
	// catchUpEntries is how much of the log is kept in memory for followers, of which there are
	// none. The default of 5000 can hold gigabytes.
	catchUpEntries = 64
	// maxSocketPath is the longest path of a unix socket.
	maxSocketPath = 107
	readyTimeout  = 60 * time.Second
	socketName    = "etcd.sock"
)

// Embedded is a running etcd.
type Embedded struct {
	server  *embed.Etcd
	client  *clientv3.Client
	socket  string
	scratch string
	level   zap.AtomicLevel
}

// Start is StartWithQuota with DefaultQuota.
func Start(ctx context.Context, dir string) (*Embedded, error) {
	return StartWithQuota(ctx, dir, DefaultQuota)
}

// StartWithQuota runs an etcd over the database in dir, which is made where it is missing, and waits until it
// answers. The database may grow to quota bytes. It listens on a unix socket that only this user can reach. A
// second process on the same dir waits for the first one's lock.
func StartWithQuota(ctx context.Context, dir string, quota int64) (_ *Embedded, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the embedded etcd: %w", err)
	}
	// Whoever may enter the folder may use the socket, which asks for no credential.
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("close the folder of the embedded etcd to others: %w", err)
	}
	e := &Embedded{level: zap.NewAtomicLevelAt(zapcore.ErrorLevel)}
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	sockets := dir
	if len(filepath.Join(dir, socketName)) > maxSocketPath {
		if e.scratch, err = os.MkdirTemp("", "rukpak-etcd-"); err != nil {
			return nil, fmt.Errorf("make a folder for the socket of the embedded etcd: %w", err)
		}
		sockets = e.scratch
	}
	e.socket = filepath.Join(sockets, socketName)
	// A process that was killed leaves its socket.
	if err := os.Remove(e.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the old socket of the embedded etcd: %w", err)
	}
	config, err := newConfig(dir, e.socket, quota, e.level)
	if err != nil {
		return nil, err
	}
	if err := checkData(dir); err != nil {
		return nil, err
	}
	if e.server, err = embed.StartEtcd(config); err != nil {
		return nil, fmt.Errorf("start the embedded etcd in %s: %w", dir, err)
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	select {
	case <-e.server.Server.ReadyNotify():
	case err := <-e.server.Err():
		return nil, fmt.Errorf("the embedded etcd in %s ended: %w", dir, err)
	case <-ctx.Done():
		// Close would wait for ever for the listeners of an etcd that never got ready.
		e.level.SetLevel(zapcore.FatalLevel)
		e.server.Server.HardStop()
		e.server = nil
		return nil, fmt.Errorf("wait for the embedded etcd in %s: %w", dir, context.Cause(ctx))
	}
	e.client = v3client.New(e.server.Server)
	return e, nil
}

func newConfig(dir, socket string, quota int64, level zap.AtomicLevel) (*embed.Config, error) {
	config := embed.NewConfig()
	config.Name = "rukpak"
	config.Dir = dataDir(dir)
	client := url.URL{Scheme: "unix", Path: socket}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	// There are no peers, and nothing listens for them. Of a peer's address etcd takes the host alone for the
	// socket, and an empty one means an abstract socket: everybody in the network namespace reaches it, and
	// it is not closed where / is read-only.
	config.ListenPeerUrls = nil
	config.AdvertisePeerUrls = []url.URL{{Scheme: "unix", Host: "peer"}}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.QuotaBackendBytes = quota
	config.SnapshotCount, config.SnapshotCatchUpEntries = catchUpEntries, catchUpEntries
	log := zap.NewProductionConfig()
	log.Level = level
	logger, err := log.Build()
	if err != nil {
		return nil, fmt.Errorf("make the log of the embedded etcd: %w", err)
	}
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(logger)
	return config, nil
}

// Endpoint is the address of the etcd.
func (e *Embedded) Endpoint() string { return "unix://" + e.socket }

// Client talks to the etcd without a connection.
func (e *Embedded) Client() *clientv3.Client { return e.client }

// Done delivers the error that the etcd ended with, if it does while it should run.
func (e *Embedded) Done() <-chan error { return e.server.Err() }

// Close stops the etcd. Whoever uses it is stopped before.
func (e *Embedded) Close() {
	if e.client != nil {
		// The client has no connection that could fail to close.
		_ = e.client.Close()
	}
	if e.server != nil {
		// It calls it an error that its listeners end.
		e.level.SetLevel(zapcore.FatalLevel)
		e.server.Close()
	}
	if e.scratch != "" {
		// The folder holds sockets alone, and its name is new each time.
		_ = os.RemoveAll(e.scratch)
	}
}
