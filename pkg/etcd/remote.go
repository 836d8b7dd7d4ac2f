// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// dialPause is how long a refused connection waits for the next try.
	dialPause = 500 * time.Millisecond
	// watchInterval and watchTimeout bound how long it takes to notice that an etcd does not answer, or does again.
	watchInterval = time.Second
	watchTimeout  = 3 * time.Second
)

// Dial connects to an etcd, trying again until ctx ends. A client of etcd pauses for up to two minutes after
// connections that failed at once; while it waits in here it does not, so that it is back half a second after etcd is.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	for {
		conn, err := d.DialContext(ctx, network, address)
		if err == nil {
			return conn, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(dialPause):
		}
	}
}

// ErrNotAsked means that it is not known yet whether an etcd answers.
var ErrNotAsked = errors.New("it has not been asked yet")

// Monitor knows whether an etcd answers.
type Monitor struct {
	client *clientv3.Client

	mu      sync.Mutex
	err     error
	broken  chan struct{} // closed while err is set
	reached bool          // it has answered once
}

// NewMonitor returns a monitor that Run starts. Until then, or until Look, the etcd counts as answering.
func NewMonitor(client *clientv3.Client) *Monitor {
	return &Monitor{client: client, broken: make(chan struct{})}
}

// Err is nil while the etcd answers, else what the latest question ended with.
func (m *Monitor) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Unreached is nil once the etcd has answered Look or Run, else what the latest question ended with, ErrNotAsked before the first. One
// that has never answered may have another address, or take other credentials.
func (m *Monitor) Unreached() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.reached:
		return nil
	case m.err == nil:
		return ErrNotAsked
	}
	return m.err
}

// Broken is closed when the etcd stops to answer, or closed already while it does not.
func (m *Monitor) Broken() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.broken
}

func (m *Monitor) note(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err != nil && m.err == nil:
		close(m.broken)
	case err == nil && m.err != nil:
		m.broken = make(chan struct{})
	}
	m.err = err
	m.reached = m.reached || err == nil
}

// Run asks until ctx ends. tell is called with what Err returns when that becomes an error, and when it becomes nil.
func (m *Monitor) Run(ctx context.Context, tell func(error)) {
	for ctx.Err() == nil {
		before := m.Err()
		if err := m.Look(ctx); (err == nil) != (before == nil) && ctx.Err() == nil {
			tell(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchInterval):
		}
	}
}

// Look asks once, within three seconds. It returns what Err does then.
func (m *Monitor) Look(ctx context.Context) error {
	err := m.ask(ctx)
	m.note(err)
	return err
}

// Wait returns when the etcd answers, or ctx ends. tell is called with each failure.
func (m *Monitor) Wait(ctx context.Context, tell func(error)) error {
	for {
		err := m.ask(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		tell(err)
		select {
		case <-ctx.Done():
		case <-time.After(watchInterval):
		}
	}
}

// ask reads a key that is not there, which takes a quorum.
func (m *Monitor) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	_, err := m.client.Get(ctx, "health", clientv3.WithCountOnly())
	return err
}
