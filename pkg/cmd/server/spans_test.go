// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/resource"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"k8s.io/utils/ptr"
)

// hungCollector takes no spans until it is told to.
type hungCollector struct {
	collector.UnimplementedTraceServiceServer
	release chan struct{}
	answers atomic.Int32
}

// Export waits until it is released, or the client does not wait any more.
func (c *hungCollector) Export(ctx context.Context, _ *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	defer c.answers.Add(1)
	select {
	case <-c.release:
		return &collector.ExportTraceServiceResponse{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func TestTheEndDoesNotWaitForACollectorThatHangs(t *testing.T) {
	for name, test := range map[string]struct {
		hangs bool
		lost  int64
	}{
		"it answers": {lost: 0},
		"it hangs":   {hangs: true, lost: 3},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			c := &hungCollector{release: make(chan struct{})}
			timeout := 50 * time.Millisecond
			if !test.hangs {
				close(c.release)
				timeout = time.Minute
			}
			server := grpc.NewServer()
			collector.RegisterTraceServiceServer(server, c)
			go func() { _ = server.Serve(listener) }()
			defer server.Stop()
			p, err := newSpanProvider(t.Context(), &tracingapi.TracingConfiguration{
				Endpoint: ptr.To(listener.Addr().String()), SamplingRatePerMillion: ptr.To[int32](1e6),
			}, timeout, resource.WithAttributes())
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				_, span := p.Tracer("test").Start(t.Context(), "span")
				span.End()
			}
			if err := p.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			// It gave up while the collector was still asked, for which the exporter's own patience is far longer.
			if test.hangs && c.answers.Load() > 0 {
				t.Error("the end came after the collector had answered")
			}
			if got := p.lost(); got != test.lost {
				t.Errorf("%d spans are lost, want %d", got, test.lost)
			}
		})
	}
}
