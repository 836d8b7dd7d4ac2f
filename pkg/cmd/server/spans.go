// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"k8s.io/klog/v2"
)

// flushTimeout bounds how long the end of the server waits for the collector to take the last spans.
const flushTimeout = 3 * time.Second

// spanProvider records spans, sends them to a collector, and knows how many that has not taken.
type spanProvider struct {
	tracing.TracerProvider
	timeout time.Duration
	ended   atomic.Int64
	taken   atomic.Int64
}

// newSpanProvider returns a provider whose Shutdown waits at most for timeout.
func newSpanProvider(ctx context.Context, config *tracingapi.TracingConfiguration, timeout time.Duration, about resource.Option) (*spanProvider, error) {
	p := &spanProvider{timeout: timeout}
	provider, err := tracing.NewProvider(ctx, config,
		[]otlptracegrpc.Option{otlptracegrpc.WithDialOption(grpc.WithChainUnaryInterceptor(p.send))}, []resource.Option{about})
	if err != nil {
		return nil, err
	}
	sdk, ok := provider.(*sdktrace.TracerProvider)
	if !ok {
		return nil, fmt.Errorf("spans are recorded by a %T, which is not known", provider)
	}
	sdk.RegisterSpanProcessor(&spanCounter{ended: &p.ended})
	p.TracerProvider = sdk
	return p, nil
}

// send counts the spans that the collector takes.
func (p *spanProvider) send(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, conn, opts...)
	request, ok := req.(*collector.ExportTraceServiceRequest)
	answer, _ := reply.(*collector.ExportTraceServiceResponse)
	if err != nil || !ok {
		return err
	}
	taken := -answer.GetPartialSuccess().GetRejectedSpans()
	for _, of := range request.GetResourceSpans() {
		for _, scope := range of.GetScopeSpans() {
			taken += int64(len(scope.GetSpans()))
		}
	}
	p.taken.Add(taken)
	return nil
}

// lost is how many spans the collector has not taken.
func (p *spanProvider) lost() int64 { return p.ended.Load() - p.taken.Load() }

// Shutdown sends what is left, within the time that there is, and says in the log how many spans nobody took since the start. A
// collector that does not answer would hold up the end of the server by the timeouts of an export each time.
func (p *spanProvider) Shutdown(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout, fmt.Errorf("the collector did not take them within %s", p.timeout))
	defer cancel()
	err := p.TracerProvider.Shutdown(ctx)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	n := p.lost()
	if n == 0 {
		return err
	}
	klog.FromContext(ctx).Error(err, "Spans are lost: the collector of --tracing-config-file has not taken them", "lost", n, "recorded", p.ended.Load())
	return nil
}

// spanCounter counts the spans that are to be sent.
type spanCounter struct{ ended *atomic.Int64 }

var _ sdktrace.SpanProcessor = &spanCounter{}

// OnStart does nothing.
func (*spanCounter) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd counts a span.
func (c *spanCounter) OnEnd(span sdktrace.ReadOnlySpan) {
	if span.SpanContext().IsSampled() {
		c.ended.Add(1)
	}
}

// Shutdown does nothing.
func (*spanCounter) Shutdown(context.Context) error { return nil }

// ForceFlush does nothing.
func (*spanCounter) ForceFlush(context.Context) error { return nil }
