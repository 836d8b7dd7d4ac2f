// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// Wire is a connection between a client and a server that can be slow, or cut.
type Wire struct {
	// URL leads to the server through the wire.
	URL string

	listener net.Listener
	to       string
	delay    atomic.Int64 // nanoseconds that each piece of an answer takes longer
	down     atomic.Bool
	cancel   context.CancelFunc
	working  sync.WaitGroup

	mu   sync.Mutex
	open map[net.Conn]struct{}
}

// StartWire lays a wire to a server, until Stop.
func StartWire(to string) (*Wire, error) {
	target, err := url.Parse(to)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("lay a wire to %s: %w", to, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &Wire{
		URL: target.Scheme + "://" + listener.Addr().String(), listener: listener, to: target.Host, cancel: cancel, open: map[net.Conn]struct{}{},
	}
	w.working.Go(func() { w.accept(ctx) })
	return w, nil
}

// Stop cuts the wire for good.
func (w *Wire) Stop() error {
	w.cancel()
	err := w.listener.Close()
	w.Cut()
	w.working.Wait()
	return err
}

// Slow makes each piece of an answer take that much longer; 0 makes the wire as quick as it was.
func (w *Wire) Slow(delay time.Duration) { w.delay.Store(int64(delay)) }

// Cut breaks all connections, and refuses new ones.
func (w *Wire) Cut() {
	w.down.Store(true)
	w.mu.Lock()
	defer w.mu.Unlock()
	for conn := range w.open {
		conn.Close()
	}
}

// Mend undoes Cut.
func (w *Wire) Mend() { w.down.Store(false) }

func (w *Wire) accept(ctx context.Context) {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return // it was closed
		}
		w.working.Go(func() {
			defer client.Close()
			dialer := net.Dialer{Timeout: dialTimeout}
			server, err := dialer.DialContext(ctx, "tcp", w.to)
			if err != nil {
				return
			}
			defer server.Close()
			if !w.keep(client) {
				return
			}
			defer w.forget(client)
			join(ctx, client, &slowed{Conn: server, ctx: ctx, delay: &w.delay})
		})
	}
}

func (w *Wire) keep(conn net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down.Load() {
		return false
	}
	w.open[conn] = struct{}{}
	return true
}

func (w *Wire) forget(conn net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open, conn)
}

// slowed gives what it read only after a delay.
type slowed struct {
	net.Conn
	ctx   context.Context
	delay *atomic.Int64
}

func (s *slowed) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if delay := time.Duration(s.delay.Load()); delay > 0 {
		select {
		case <-time.After(delay):
		case <-s.ctx.Done():
		}
	}
	return n, err
}
