// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// An etcd that has answered once is reached for good; one that never has is not, whatever Err says.
func TestReachedOnceIsReached(t *testing.T) {
	e := start(t, t.TempDir())
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{e.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	m := NewMonitor(client)
	away, cancel := context.WithCancel(t.Context())
	cancel()
	for _, step := range []struct {
		name    string
		ctx     context.Context
		reached bool
		answers bool
	}{
		{"nobody has looked", nil, false, true},
		{"it does not answer", away, false, false},
		{"it answers", t.Context(), true, true},
		{"it does not answer any more", away, true, false},
	} {
		if step.ctx != nil {
			_ = m.Look(step.ctx) // Err has it
		}
		if err := m.Unreached(); err == nil != step.reached || m.Err() == nil != step.answers {
			t.Errorf("%s: unreached %v, %v", step.name, err, m.Err())
		}
	}
	if size, err := Size(t.Context(), client); size == 0 || err != nil {
		t.Errorf("its size is %d, %v", size, err)
	}
	if size, err := Size(t.Context(), e.Client()); size == 0 || err != nil {
		t.Errorf("its size, asked in process, is %d, %v", size, err)
	}
	e.Close()
}
