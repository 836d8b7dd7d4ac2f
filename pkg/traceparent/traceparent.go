// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package traceparent keeps the context of a trace where a process does not reach: in an annotation, in the
// environment of a pod, in a header field. It is a string as W3C Trace Context has it, of a trace that is
// recorded; of any other it is empty, so that nothing is written where nobody traces.
package traceparent

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Header is the header field of HTTP (W3C Trace Context, section 3.2).
const Header = "Traceparent"

const key = "traceparent"

// Of returns the span in a context, and nothing unless that is recorded.
func Of(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[key]
}

// Parse returns the span that a string names, and false unless it is one that is recorded.
func Parse(s string) (trace.SpanContext, bool) {
	if s == "" {
		return trace.SpanContext{}, false
	}
	found := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{key: s}))
	return found, found.IsValid() && found.IsSampled()
}

// With returns a context in which spans belong below the one that a string names; ctx itself if it names none.
func With(ctx context.Context, s string) context.Context {
	parent, ok := Parse(s)
	if !ok {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, parent)
}
