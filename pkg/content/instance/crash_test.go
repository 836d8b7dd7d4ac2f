// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"rukpak.io/apiserver/pkg/content/etcdtest"
	"rukpak.io/apiserver/pkg/content/instance"
)

var errDead = errors.New("the process is dead")

// mortal is a process that dies at one of its writes: before it, or after it.
type mortal struct {
	mu     sync.Mutex
	writes int // so far
	dieAt  int // counted from 1; 0 is never
	after  bool
}

// write does a write, if the process lives.
func (m *mortal) write(do func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	if m.dieAt > 0 && (m.writes > m.dieAt || m.writes == m.dieAt && !m.after) {
		return errDead
	}
	err := do()
	if m.writes == m.dieAt {
		return errDead
	}
	return err
}

type mortalKV struct {
	clientv3.KV
	m *mortal
}

func (k mortalKV) Txn(ctx context.Context) clientv3.Txn { return mortalTxn{k.KV.Txn(ctx), k.m} }

type mortalTxn struct {
	clientv3.Txn
	m *mortal
}

func (t mortalTxn) If(c ...clientv3.Cmp) clientv3.Txn  { return mortalTxn{t.Txn.If(c...), t.m} }
func (t mortalTxn) Then(o ...clientv3.Op) clientv3.Txn { return mortalTxn{t.Txn.Then(o...), t.m} }

func (t mortalTxn) Commit() (resp *clientv3.TxnResponse, err error) {
	err = t.m.write(func() error {
		resp, err = t.Txn.Commit()
		return err
	})
	return resp, err
}

type mortalMarks struct {
	instance.Marks
	m *mortal
}

func (p mortalMarks) WriteMark(ctx context.Context, mark []byte) error {
	return p.m.write(func() error { return p.Marks.WriteMark(ctx, mark) })
}

// TestEveryCrash lets a process die before and after each of its writes. The next one, which is told no more than the first, goes on.
func TestEveryCrash(t *testing.T) {
	client := etcdtest.Start(t)
	for name, begin := range map[string]func(w *world) (accept string){
		"first start": func(*world) string { return "" },
		"first start over content": func(w *world) string {
			w.putObject()
			w.putBlob("default")
			return ""
		},
		"renewal": func(w *world) string {
			w.fits()
			w.putObject()
			return ""
		},
		"new store": func(w *world) string {
			w.names = w.names[:1]
			w.fits()
			w.names = append(w.names, "second")
			return ""
		},
		"namespace made again": func(w *world) string {
			w.fits()
			w.cluster.mark = nil
			return ""
		},
		"accepted loss of etcd": func(w *world) string {
			w.fits()
			w.emptyEtcd()
			d, _ := w.disagrees()
			return d.Token
		},
		"accepted loss of a store": func(w *world) string {
			w.fits()
			w.emptyStore("default")
			d, _ := w.disagrees()
			return d.Token
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, client, "/crash")
			w.names = append(w.names, "second")
			for n, more := 1, true; more; n++ {
				for _, after := range []bool{false, true} {
					more = dieOnce(w, begin, &mortal{dieAt: n, after: after})
				}
			}
		})
	}
}

// dieOnce reports whether the process died.
func dieOnce(w *world, begin func(*world) string, m *mortal) bool {
	w.t.Helper()
	w.emptyEtcd()
	w.cluster.mark = nil
	w.emptyStore("default")
	w.emptyStore("second")
	accept := begin(w)
	w.around = func(_ clientv3.KV, _ string, marks instance.Marks) (clientv3.KV, instance.Marks) {
		return mortalKV{w.client, m}, mortalMarks{marks, m}
	}
	first := w.accept(accept)
	w.around = nil
	at := fmt.Sprintf("death at write %d, after it: %v", m.dieAt, m.after)
	if err := w.accept(accept); err != nil {
		w.t.Fatalf("%s (%v): the next process finds %v", at, first, err)
	}
	if _, got := w.disagrees(); got != "" {
		w.t.Fatalf("%s: the one after that finds %s", at, got)
	}
	// Nothing is left that would be taken for unfinished at a later loss.
	for _, name := range w.names {
		back := w.saveStore(name)
		w.emptyStore(name)
		if _, got := w.disagrees(); got != "store/"+name+" Unmarked" {
			w.t.Fatalf("%s: after a loss of store %s the finding is %q", at, name, got)
		}
		back()
	}
	return m.writes >= m.dieAt
}
