// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// healthInterval is how often a balancer asks whether a server is ready.
	healthInterval = 200 * time.Millisecond
	// dialTimeout bounds how long it tries to reach one.
	dialTimeout = time.Second
)

// Balancer spreads connections over servers, as a Service does: it knows of each whether it is ready, and nothing of
// what is sent.
type Balancer struct {
	Port int

	listener net.Listener
	backends []*backend
	next     atomic.Uint64
	cancel   context.CancelFunc
	working  sync.WaitGroup
}

type backend struct {
	server *Server
	ready  atomic.Bool
}

// StartBalancer spreads connections over servers, which need not run yet, until Stop.
func StartBalancer(servers []*Server) (*Balancer, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for connections to spread: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b := &Balancer{Port: listener.Addr().(*net.TCPAddr).Port, listener: listener, cancel: cancel}
	for _, s := range servers {
		to := &backend{server: s}
		b.backends = append(b.backends, to)
		b.working.Go(func() { to.watch(ctx) })
	}
	b.working.Go(func() { b.accept(ctx) })
	return b, nil
}

// Stop ends all connections.
func (b *Balancer) Stop() error {
	b.cancel()
	err := b.listener.Close()
	b.working.Wait()
	return err
}

// Ready returns once the server of that index gets connections, or none any more.
func (b *Balancer) Ready(ctx context.Context, index int, want bool) error {
	for b.backends[index].ready.Load() != want {
		select {
		case <-ctx.Done():
			return fmt.Errorf("server %d: gave up waiting until it gets connections: %v: %w", index, want, ctx.Err())
		case <-time.After(pollInterval):
		}
	}
	return nil
}

func (b *backend) watch(ctx context.Context) {
	for ctx.Err() == nil {
		probing, cancel := context.WithTimeout(ctx, dialTimeout)
		b.ready.Store(b.server.Probe(probing, "/readyz") == nil)
		cancel()
		select {
		case <-ctx.Done():
		case <-time.After(healthInterval):
		}
	}
}

func (b *Balancer) accept(ctx context.Context) {
	for {
		client, err := b.listener.Accept()
		if err != nil {
			return // it was closed
		}
		b.working.Go(func() {
			defer client.Close()
			server, err := b.dial(ctx)
			if err != nil {
				return // as when no endpoint is there: the client sees a connection that breaks
			}
			defer server.Close()
			join(ctx, client, server)
		})
	}
}

// dial connects to the next server that is ready and takes the connection.
func (b *Balancer) dial(ctx context.Context) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	errs := []error{errors.New("no server is ready")}
	for range b.backends {
		to := b.backends[b.next.Add(1)%uint64(len(b.backends))]
		if !to.ready.Load() {
			continue
		}
		conn, err := dialer.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", to.server.Port))
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// join copies both ways until one side ends or ctx does; then both are closed.
func join(ctx context.Context, a, b net.Conn) {
	stop := context.AfterFunc(ctx, func() { a.Close(); b.Close() })
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(a, b)
		a.Close()
		b.Close()
	}()
	_, _ = io.Copy(b, a)
	a.Close()
	b.Close()
	<-done
}
