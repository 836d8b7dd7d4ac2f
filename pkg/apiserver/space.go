// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"rukpak.io/apiserver/pkg/etcd"
)

// explainNoSpace has writes that fail because etcd is full answered with 507 and a word about what to do, in place of 500.
func explainNoSpace(getter generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	return wrappingGetter{getter, func(open opener) (storage.Interface, factory.DestroyFunc, error) {
		s, destroy, err := open()
		return spaceStorage{s}, destroy, err
	}}
}

// spaceStorage turns one error of writes into one for users.
type spaceStorage struct{ storage.Interface }

func (s spaceStorage) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return explained(s.Interface.Create(ctx, key, obj, out, ttl))
}

func (s spaceStorage) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc, cached runtime.Object, options storage.DeleteOptions) error {
	return explained(s.Interface.Delete(ctx, key, out, preconditions, validate, cached, options))
}

func (s spaceStorage) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	return explained(s.Interface.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, update, cached))
}

func explained(err error) error {
	if !etcd.NoSpace(err) {
		return err
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage, Reason: "InsufficientStorage", Message: etcd.NoSpaceMessage,
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "EtcdNoSpace", Message: err.Error()}}},
	}}
}
