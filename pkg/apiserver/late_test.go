// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"rukpak.io/apiserver/pkg/apis/rukpak"
)

// comingEtcd is an etcd that can come.
type comingEtcd struct{ here atomic.Bool }

func (e *comingEtcd) Err() error {
	if e.here.Load() {
		return nil
	}
	return errors.New("connection refused")
}

func (e *comingEtcd) Broken() <-chan struct{} { return nil }

// emptyStorage has nothing.
type emptyStorage struct{ storage.Interface }

func (emptyStorage) Get(_ context.Context, key string, _ storage.GetOptions, _ runtime.Object) error {
	return storage.NewKeyNotFoundError(key, 0)
}

func (emptyStorage) ReadinessCheck() error { return errors.New("its cache is not filled") }

func TestStorageComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd, tries, undone := &comingEtcd{}, 0, 0
		late := newLateStorage(etcd, func() (storage.Interface, factory.DestroyFunc, error) {
			if tries++; tries == 1 {
				return nil, nil, errors.New("it went away again")
			}
			return emptyStorage{}, func() { undone++ }, nil
		})
		get := func() error {
			return late.Get(t.Context(), "/bundles/team/app", storage.GetOptions{}, &rukpak.Bundle{})
		}
		time.Sleep(time.Hour)
		if err := get(); !apierrors.IsServiceUnavailable(err) || tries > 0 {
			t.Errorf("without etcd: %v, after %d tries", err, tries)
		}
		if err := late.ReadinessCheck(); err != nil {
			t.Errorf("without etcd it is not ready: %v", err)
		}
		etcd.here.Store(true)
		if err := late.ReadinessCheck(); err == nil {
			t.Error("it is ready before it is opened")
		}
		time.Sleep(time.Second)
		if err := get(); !storage.IsNotFound(err) || tries != 2 {
			t.Errorf("with etcd: %v, after %d tries", err, tries)
		}
		if err := late.ReadinessCheck(); err == nil {
			t.Error("it is ready before its cache is")
		}
		late.destroy()
		if undone != 1 {
			t.Errorf("it was destroyed %d times", undone)
		}
	})
}

func TestStorageThatNeverComesEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd, undone := &comingEtcd{}, 0
		etcd.here.Store(true)
		var late *lateStorage
		late = newLateStorage(etcd, func() (storage.Interface, factory.DestroyFunc, error) {
			late.destroy() // while it is being made
			return emptyStorage{}, func() { undone++ }, nil
		})
		time.Sleep(time.Second)
		if undone != 1 {
			t.Errorf("what was made too late was destroyed %d times", undone)
		}
	})
}
