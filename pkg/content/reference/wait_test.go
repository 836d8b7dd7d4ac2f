// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// stuckKV has a deletion that never ends.
type stuckKV struct{ clientv3.KV }

func (stuckKV) answer() *pb.RangeResponse {
	return &pb.RangeResponse{Count: 1, Kvs: []*mvccpb.KeyValue{{Value: []byte(`{"state":"deleting","time":"2026-01-02T12:00:00Z"}`), ModRevision: 1}}}
}

func (s stuckKV) Get(context.Context, string, ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return (*clientv3.GetResponse)(s.answer()), nil
}

func (s stuckKV) Txn(context.Context) clientv3.Txn { return stuckTxn{s} }

type stuckTxn struct{ kv stuckKV }

func (s stuckTxn) If(...clientv3.Cmp) clientv3.Txn  { return s }
func (s stuckTxn) Then(...clientv3.Op) clientv3.Txn { return s }
func (s stuckTxn) Else(...clientv3.Op) clientv3.Txn { return s }
func (s stuckTxn) Commit() (*clientv3.TxnResponse, error) {
	get := &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: s.kv.answer()}}
	return (*clientv3.TxnResponse)(&pb.TxnResponse{Responses: []*pb.ResponseOp{get}}), nil
}

// TestNobodyWaitsForeverForADeletion: whoever commits has a deadline that is much longer, and keeps others from committing.
func TestNobodyWaitsForeverForADeletion(t *testing.T) {
	for name, wait := range map[string]func(context.Context, *Records) error{
		"add":    func(ctx context.Context, r *Records) error { return r.Add(ctx, ref(1, "a"), "ns", "app") },
		"settle": func(ctx context.Context, r *Records) error { return r.Settle(ctx, store, digest(1)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				begin := time.Now()
				err := wait(ctx, New(stuckKV{}, "/test", time.Now))
				if took := time.Since(begin); took != waitTimeout { // of the fake clock
					t.Errorf("it took %v", took)
				}
				if !errors.Is(err, ErrDeleting) || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

func TestTakeBack(t *testing.T) {
	r, _ := start(t)
	ctx := t.Context()
	deleting := startDeleting(t, r, 1)
	later := noon.Add(time.Hour)
	r.now = func() time.Time { return later }
	pending, ok, err := r.TakeBack(ctx, deleting)
	if err != nil || !ok || pending != tombs(t, r)[0] || pending.State != Pending || !pending.Time.Equal(later) {
		t.Fatalf("take back: %+v, %v, %v", pending, ok, err)
	}
	if _, ok, err := r.TakeBack(ctx, deleting); ok || err != nil || tombs(t, r)[0] != pending {
		t.Errorf("one that has changed was taken back: %v, %v", ok, err)
	}
	must(t, r.TryAdd(ctx, ref(1, "a"), "ns", "app"))
	removing, ok, err := r.StartRemoving(ctx, store, digest(1))
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if _, ok, err := r.TakeBack(ctx, removing); ok || err != nil || len(tombs(t, r)) != 0 {
		t.Errorf("beside a record: %v, %v, left are %v", ok, err, tombs(t, r))
	}
	wantHas(t, r, ref(1, "a"), true)
}

func TestRenew(t *testing.T) {
	r, _ := start(t)
	ctx := t.Context()
	must(t, r.Add(ctx, ref(1, "a"), "team-a", "app"))
	seen := list(t, r)[0]
	later := noon.Add(time.Hour)
	r.now = func() time.Time { return later }
	if ok, err := r.Renew(ctx, seen); !ok || err != nil {
		t.Fatal(ok, err)
	}
	got := list(t, r)[0]
	if got.Ref != seen.Ref || got.Namespace != "team-a" || got.Name != "app" || !got.Time.Equal(later) {
		t.Errorf("it is %+v", got)
	}
	if ok, err := r.Renew(ctx, seen); ok || err != nil {
		t.Errorf("renewed what has changed: %v, %v", ok, err)
	}
	must(t, r.Remove(ctx, ref(1, "a")))
	if ok, err := r.Renew(ctx, got); ok || err != nil || len(list(t, r)) != 0 {
		t.Errorf("renewed what is gone: %v, %v", ok, err)
	}
}
