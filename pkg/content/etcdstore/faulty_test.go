// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcdstore_test

import (
	"context"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"rukpak.io/apiserver/pkg/content/contenttest"
)

// faultyKV is a KV whose calls fail as next says.
type faultyKV struct {
	clientv3.KV
	next func() contenttest.Fault
}

var errGone = status.Error(codes.Unavailable, "the connection is gone")

// call makes a call that may fail.
func call[T any](kv faultyKV, do func() (T, error)) (T, error) {
	var none T
	switch kv.next() {
	case contenttest.Lost:
		return none, errGone
	case contenttest.Busy:
		return none, rpctypes.ErrTooManyRequests
	case contenttest.Unsure:
		if _, err := do(); err != nil {
			return none, err
		}
		return none, errGone
	default:
		return do()
	}
}

func (kv faultyKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return call(kv, func() (*clientv3.GetResponse, error) { return kv.KV.Get(ctx, key, opts...) })
}

func (kv faultyKV) Put(ctx context.Context, key, value string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	return call(kv, func() (*clientv3.PutResponse, error) { return kv.KV.Put(ctx, key, value, opts...) })
}

func (kv faultyKV) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	return call(kv, func() (*clientv3.DeleteResponse, error) { return kv.KV.Delete(ctx, key, opts...) })
}

func (kv faultyKV) Txn(ctx context.Context) clientv3.Txn {
	return &faultyTxn{kv.KV.Txn(ctx), kv}
}

type faultyTxn struct {
	clientv3.Txn
	kv faultyKV
}

func (t *faultyTxn) If(cs ...clientv3.Cmp) clientv3.Txn {
	t.Txn = t.Txn.If(cs...)
	return t
}

func (t *faultyTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Then(ops...)
	return t
}

func (t *faultyTxn) Commit() (*clientv3.TxnResponse, error) { return call(t.kv, t.Txn.Commit) }
