// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// keys is the part of etcd that package reference uses, in memory. Unlike etcd's,
// revisions count per key: two orders of transactions that touch different keys
// then end in the same state, which keeps the number of states small.
// TestFakeIsLikeEtcd compares it with the real one.
type keys struct {
	values    map[string]string
	revisions map[string]int64 // last one of each key, also of keys that are gone
}

func newKeys() *keys {
	return &keys{values: map[string]string{}, revisions: map[string]int64{}}
}

func (k *keys) clone() *keys {
	return &keys{values: maps.Clone(k.values), revisions: maps.Clone(k.revisions)}
}

// state is a text that two stores share if they cannot be told apart.
func (k *keys) state() string {
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(k.values)) {
		fmt.Fprintf(&text, "%s=%s@%d;", key, k.values[key], k.revisions[key])
	}
	return text.String()
}

func (k *keys) in(key, end []byte) []string {
	if len(end) == 0 {
		if _, ok := k.values[string(key)]; ok {
			return []string{string(key)}
		}
		return nil
	}
	var found []string
	for name := range k.values {
		if name >= string(key) && name < string(end) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found
}

func (k *keys) holds(c *pb.Compare) bool {
	names := k.in(c.Key, c.RangeEnd)
	if len(names) == 0 {
		names = []string{""} // compared with a key that is not there: revision 0
	}
	for _, name := range names {
		var have, want int64
		if _, ok := k.values[name]; ok {
			have = k.revisions[name]
		}
		switch target := c.TargetUnion.(type) {
		case *pb.Compare_ModRevision:
			want = target.ModRevision
		case *pb.Compare_CreateRevision:
			if want = target.CreateRevision; want != 0 {
				panic("only whether a key exists is known of its creation")
			}
		default:
			panic(fmt.Sprintf("comparison of %v", c.Target))
		}
		if c.Result != pb.Compare_EQUAL {
			panic(fmt.Sprintf("comparison with %v", c.Result))
		}
		if have != want {
			return false
		}
	}
	return true
}

func (k *keys) get(op clientv3.Op) *pb.RangeResponse {
	resp := &pb.RangeResponse{}
	for _, name := range k.in(op.KeyBytes(), op.RangeBytes()) {
		resp.Count++
		if op.IsCountOnly() {
			continue
		}
		if op.Limit() > 0 && int64(len(resp.Kvs)) == op.Limit() {
			resp.More = true
			continue
		}
		resp.Kvs = append(resp.Kvs, &mvccpb.KeyValue{Key: []byte(name), Value: []byte(k.values[name]), ModRevision: k.revisions[name]})
	}
	return resp
}

// do returns the answer and the revision that was written, if any.
func (k *keys) do(op clientv3.Op) (*pb.ResponseOp, int64) {
	key := string(op.KeyBytes())
	switch {
	case op.IsGet():
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: k.get(op)}}, 0
	case op.IsPut():
		k.revisions[key]++
		k.values[key] = string(op.ValueBytes())
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{}}}, k.revisions[key]
	case op.IsDelete() && len(op.RangeBytes()) == 0:
		delete(k.values, key)
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &pb.DeleteRangeResponse{}}}, 0
	}
	panic("an operation that the fake does not know")
}

// actorKV is the clientv3.KV of one actor: each request is one step of it.
type actorKV struct {
	clientv3.KV // nil: a method that is not below panics
	keys        *keys
	step        func(name string, do func() string)
	lax         bool // transactions ignore their conditions; see TestModelFindsFaults
}

func (a *actorKV) Get(_ context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	var resp *pb.RangeResponse
	a.step("get", func() string {
		resp = a.keys.get(clientv3.OpGet(key, opts...))
		return describe(resp)
	})
	return (*clientv3.GetResponse)(resp), nil
}

func (a *actorKV) Txn(context.Context) clientv3.Txn { return &actorTxn{actor: a} }

type actorTxn struct {
	actor   *actorKV
	cmps    []clientv3.Cmp
	yes, no []clientv3.Op
}

func (t *actorTxn) If(cs ...clientv3.Cmp) clientv3.Txn { t.cmps = cs; return t }
func (t *actorTxn) Then(o ...clientv3.Op) clientv3.Txn { t.yes = o; return t }
func (t *actorTxn) Else(o ...clientv3.Op) clientv3.Txn { t.no = o; return t }
func (t *actorTxn) Commit() (*clientv3.TxnResponse, error) {
	resp := &pb.TxnResponse{Header: &pb.ResponseHeader{}}
	t.actor.step("transaction", func() string {
		k := t.actor.keys
		resp.Succeeded = true
		for _, c := range t.cmps {
			resp.Succeeded = resp.Succeeded && (t.actor.lax || k.holds(c.GetCompare()))
		}
		ops := t.yes
		if !resp.Succeeded {
			ops = t.no
		}
		text := fmt.Sprint(resp.Succeeded)
		for _, op := range ops {
			answer, revision := k.do(op)
			resp.Responses = append(resp.Responses, answer)
			resp.Header.Revision = max(resp.Header.Revision, revision)
			text += describe(answer.GetResponseRange())
		}
		return text + fmt.Sprint(resp.Header.Revision)
	})
	return (*clientv3.TxnResponse)(resp), nil
}

func describe(resp *pb.RangeResponse) string {
	var text bytes.Buffer
	for _, kv := range resp.GetKvs() {
		fmt.Fprintf(&text, "%s=%s@%d;", kv.Key, kv.Value, kv.ModRevision)
	}
	fmt.Fprint(&text, resp.GetCount())
	return text.String()
}
