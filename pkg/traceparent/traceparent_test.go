// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package traceparent

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/trace"
)

func TestWithAndOf(t *testing.T) {
	const recorded = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
	for name, test := range map[string]struct{ in, want string }{
		"recorded":      {recorded, recorded},
		"not recorded":  {"00-0123456789abcdef0123456789abcdef-0123456789abcdef-00", ""},
		"no trace":      {"00-00000000000000000000000000000000-0123456789abcdef-01", ""},
		"nothing":       {"", ""},
		"something":     {"x", ""},
		"several lines": {recorded + "\nX: y", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Of(With(t.Context(), test.in)); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if _, ok := Parse(test.in); ok != (test.want != "") {
				t.Errorf("Parse finds one: %t", ok)
			}
		})
	}
}

func TestWithKeepsTheSpanThatIsThere(t *testing.T) {
	here := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	ctx := trace.ContextWithSpanContext(context.Background(), here)
	if got := trace.SpanContextFromContext(With(ctx, "x")); !got.Equal(here) {
		t.Errorf("got %v", got)
	}
}
