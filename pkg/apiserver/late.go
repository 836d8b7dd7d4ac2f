// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/klog/v2"
)

// lateInterval is how often it is looked whether etcd is there.
const lateInterval = 100 * time.Millisecond

// awaitEtcd has storage made when etcd is there. To make it takes a connection; a server that waited for one could
// not answer discovery meanwhile.
func awaitEtcd(getter generic.RESTOptionsGetter, etcd Etcd) generic.RESTOptionsGetter {
	return wrappingGetter{getter, func(connect opener) (storage.Interface, factory.DestroyFunc, error) {
		if etcd.Err() == nil {
			return connect()
		}
		late := newLateStorage(etcd, connect)
		return late, late.destroy, nil
	}}
}

// lateStorage is a storage that is not there before etcd is. Until then all that it is asked ends in an error that says so.
type lateStorage struct {
	etcd   Etcd
	cancel context.CancelFunc

	mu   sync.Mutex
	made storage.Interface // nil until then
	undo factory.DestroyFunc
}

var _ storage.Interface = (*lateStorage)(nil)

// newLateStorage begins to wait. The caller calls destroy.
func newLateStorage(etcd Etcd, connect opener) *lateStorage {
	ctx, cancel := context.WithCancel(context.Background())
	l := &lateStorage{etcd: etcd, cancel: cancel}
	go l.make(ctx, connect)
	return l
}

func (l *lateStorage) make(ctx context.Context, connect opener) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(lateInterval):
		}
		if l.etcd.Err() != nil {
			continue
		}
		made, undo, err := connect()
		if err != nil {
			klog.Background().Error(err, "Cannot open the storage of the API yet")
			continue
		}
		l.keep(ctx, made, undo)
		return
	}
}

func (l *lateStorage) keep(ctx context.Context, made storage.Interface, undo factory.DestroyFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil {
		undo()
		return
	}
	l.made, l.undo = made, undo
}

// destroy ends the waiting, or the storage. It may be called more than once.
func (l *lateStorage) destroy() {
	l.cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.undo != nil {
		l.undo()
	}
}

var errNotOpened = errors.New("the storage is not opened yet")

// storage returns what is asked, once it is there.
func (l *lateStorage) storage() (storage.Interface, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.made != nil {
		return l.made, nil
	}
	if err := l.etcd.Err(); err != nil {
		return nil, etcdIsAway(err)
	}
	return nil, etcdIsAway(errNotOpened)
}

// Versioner is the same for all that keep objects of an API.
func (l *lateStorage) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }

func (l *lateStorage) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	s, err := l.storage()
	if err != nil {
		return err
	}
	return s.Create(ctx, key, obj, out, ttl)
}

func (l *lateStorage) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc, cached runtime.Object, options storage.DeleteOptions) error {
	s, err := l.storage()
	if err != nil {
		return err
	}
	return s.Delete(ctx, key, out, preconditions, validate, cached, options)
}

func (l *lateStorage) Watch(ctx context.Context, key string, options storage.ListOptions) (watch.Interface, error) {
	s, err := l.storage()
	if err != nil {
		return nil, err
	}
	return s.Watch(ctx, key, options)
}

func (l *lateStorage) Get(ctx context.Context, key string, options storage.GetOptions, out runtime.Object) error {
	s, err := l.storage()
	if err != nil {
		return err
	}
	return s.Get(ctx, key, options, out)
}

func (l *lateStorage) GetList(ctx context.Context, key string, options storage.ListOptions, out runtime.Object) error {
	s, err := l.storage()
	if err != nil {
		return err
	}
	return s.GetList(ctx, key, options, out)
}

func (l *lateStorage) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	s, err := l.storage()
	if err != nil {
		return err
	}
	return s.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, update, cached)
}

func (l *lateStorage) Stats(ctx context.Context) (storage.Stats, error) {
	s, err := l.storage()
	if err != nil {
		return storage.Stats{}, err
	}
	return s.Stats(ctx)
}

// ReadinessCheck is passed while etcd is away: it is no part of the readiness of the server.
func (l *lateStorage) ReadinessCheck() error {
	s, err := l.storage()
	switch {
	case err == nil:
		return s.ReadinessCheck()
	case l.etcd.Err() != nil:
		return nil
	}
	return err
}

func (l *lateStorage) RequestWatchProgress(ctx context.Context) error {
	s, err := l.storage()
	if err != nil {
		return err
	}
	return s.RequestWatchProgress(ctx)
}

func (l *lateStorage) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	s, err := l.storage()
	if err != nil {
		return 0, err
	}
	return s.GetCurrentResourceVersion(ctx)
}

func (l *lateStorage) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	s, err := l.storage()
	if err != nil {
		return err
	}
	return s.EnableResourceSizeEstimation(keys)
}

func (l *lateStorage) CompactRevision() int64 {
	s, err := l.storage()
	if err != nil {
		return 0
	}
	return s.CompactRevision()
}
