// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcdstore_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"rukpak.io/apiserver/pkg/content/contenttest"
	"rukpak.io/apiserver/pkg/content/etcdstore"
	"rukpak.io/apiserver/pkg/content/etcdtest"
)

// slowKV is a KV that holds writes of chunks back until it is told to go on.
type slowKV struct {
	clientv3.KV
	arrived chan struct{} // one for each chunk
	goOn    chan struct{} // closed when they may

	mu        sync.Mutex
	now, peak int // chunks that are held back, and the most of them that ever were
}

func newSlowKV(kv clientv3.KV) *slowKV {
	return &slowKV{KV: kv, arrived: make(chan struct{}, 100), goOn: make(chan struct{})}
}

func (kv *slowKV) hold(chunks int) {
	kv.mu.Lock()
	defer kv.mu.Unlock()
	kv.now += chunks
	kv.peak = max(kv.peak, kv.now)
}

// held returns how many chunks are held back, and the most that ever were.
func (kv *slowKV) held() (now, peak int) {
	kv.mu.Lock()
	defer kv.mu.Unlock()
	return kv.now, kv.peak
}

func (kv *slowKV) Txn(ctx context.Context) clientv3.Txn {
	return &slowTxn{Txn: kv.KV.Txn(ctx), kv: kv, ctx: ctx}
}

type slowTxn struct {
	clientv3.Txn
	kv    *slowKV
	ctx   context.Context
	chunk bool
}

func (t *slowTxn) If(cs ...clientv3.Cmp) clientv3.Txn {
	t.Txn = t.Txn.If(cs...)
	return t
}

func (t *slowTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.chunk = len(ops) == 1 && len(ops[0].ValueBytes()) == etcdstore.ChunkSize
	t.Txn = t.Txn.Then(ops...)
	return t
}

func (t *slowTxn) Commit() (*clientv3.TxnResponse, error) {
	if t.chunk {
		t.kv.hold(1)
		defer t.kv.hold(-1)
		t.kv.arrived <- struct{}{}
		select {
		case <-t.kv.goOn:
		case <-t.ctx.Done():
			return nil, t.ctx.Err()
		}
	}
	return t.Txn.Commit()
}

// TestChunksFlyTogether has etcd answer late: several chunks are on their way then, but no more than there may be; and the
// writer who leaves after the last byte does not miss them.
func TestChunksFlyTogether(t *testing.T) {
	client := etcdtest.Start(t)
	kv := newSlowKV(client.KV)
	s := etcdstore.New(kv, prefix, etcdstore.DefaultCapacity)
	b := contenttest.Blob{Seed: 1, Size: (etcdstore.MaxFlights+2)*etcdstore.ChunkSize + 1}
	ctx, leave := context.WithCancel(t.Context())
	w, err := s.Create(ctx)
	if err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := w.Write(b.Bytes(t))
		wrote <- err
	}()
	for range etcdstore.MaxFlights {
		<-kv.arrived
	}
	for !waitingIn("etcdstore.(*upload).flush") {
		select {
		case err := <-wrote:
			t.Fatalf("nobody waited for chunks: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	close(kv.goOn)
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	leave()
	if err := w.Commit(t.Context(), w.Digest()); err != nil {
		t.Fatal(err)
	}
	r, err := s.Open(t.Context(), b.Digest(), 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil || !bytes.Equal(got, b.Bytes(t)) {
		t.Errorf("%d bytes come back, %v", len(got), err)
	}
	if _, peak := kv.held(); peak != etcdstore.MaxFlights {
		t.Errorf("%d chunks were on their way at the same time, not %d", peak, etcdstore.MaxFlights)
	}
	if left := debris(t, client); len(left) > 0 {
		t.Errorf("debris is left: %q", left)
	}
}

// waitingIn reports whether a goroutine waits in a select of a function.
func waitingIn(function string) bool {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for stack := range bytes.SplitSeq(stacks, []byte("\n\n")) {
		state, frames, _ := bytes.Cut(stack, []byte("\n"))
		top, _, _ := bytes.Cut(frames, []byte("\n"))
		if bytes.Contains(state, []byte("[select")) && bytes.Contains(top, []byte(function+"(")) {
			return true
		}
	}
	return false
}

// TestAbortEndsFlights: an upload that is given up leaves nothing, whatever of it is on its way.
func TestAbortEndsFlights(t *testing.T) {
	client := etcdtest.Start(t)
	kv := newSlowKV(client.KV)
	s := etcdstore.New(kv, prefix, etcdstore.DefaultCapacity)
	for _, end := range []string{"abort", "a commit that is too late"} {
		w, err := s.Create(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, 2*etcdstore.ChunkSize+1)); err != nil {
			t.Fatal(err)
		}
		<-kv.arrived
		<-kv.arrived
		if end == "abort" {
			if err := w.Abort(); err != nil {
				t.Error(err)
			}
		} else {
			late, cancel := context.WithCancel(t.Context())
			go cancel()
			if err := w.Commit(late, w.Digest()); !errors.Is(err, context.Canceled) {
				t.Errorf("a commit that is too late ends with %v", err)
			}
		}
		if now, _ := kv.held(); now != 0 {
			t.Errorf("%s: %d chunks are still on their way", end, now)
		}
		if left := debris(t, client); len(left) > 0 {
			t.Errorf("%s: debris is left: %q", end, left)
		}
	}
}
