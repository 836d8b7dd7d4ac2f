// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/traceparent"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

// traces holds the spans of the attempts that this process began, and of their pods: below the span of the request that
// made the bundle what it is, attempt, and below that pod, with scheduling and pull. What the server does with the upload
// is recorded where that is taken. An attempt that another process began is recorded when it ends, without its pod.
type traces struct {
	tracer   trace.Tracer
	mu       sync.Mutex
	attempts map[string]trace.Span // by nonce
	// pods has a span of each bundle of a pod, in the trace of that.
	pods map[types.UID][]podTrace
}

type podTrace struct {
	span  trace.Span
	began time.Time
}

// root is where the spans of a bundle belong. False means that it is not traced.
func root(ctx context.Context, b *v1alpha1.Bundle) (context.Context, bool) {
	if _, ok := traceparent.Parse(b.Annotations[v1alpha1.AnnotationTraceParent]); !ok {
		return ctx, false
	}
	return traceparent.With(ctx, b.Annotations[v1alpha1.AnnotationTraceParent]), true
}

func (t *traces) start(ctx context.Context, b *v1alpha1.Bundle, u *v1alpha1.UnpackStatus, at time.Time) trace.Span {
	_, span := t.tracer.Start(ctx, "attempt", trace.WithTimestamp(at), trace.WithAttributes(
		attribute.String("rukpak.namespace", b.Namespace), attribute.String("rukpak.bundle", b.Name), attribute.String("rukpak.uid", string(b.UID)),
		attribute.Int64("rukpak.generation", u.Generation), attribute.Int("rukpak.attempt", int(u.Attempt)), attribute.String("rukpak.mode", string(u.Mode))))
	return span
}

// begin records the attempt that has been written to a bundle's status.
func (t *traces) begin(ctx context.Context, b *v1alpha1.Bundle) {
	ctx, ok := root(ctx, b)
	if !ok {
		return
	}
	span := t.start(ctx, b, b.Status.Unpack, time.Now())
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.attempts == nil {
		t.attempts = map[string]trace.Span{}
	}
	t.attempts[b.Status.Unpack.Nonce] = span
}

// within is the context of what is done for the running attempt of a bundle.
func (t *traces) within(ctx context.Context, b *v1alpha1.Bundle) context.Context {
	t.mu.Lock()
	span := t.attempts[b.Status.Unpack.Nonce]
	t.mu.Unlock()
	if span != nil {
		return trace.ContextWithSpan(ctx, span)
	}
	ctx, _ = root(ctx, b)
	return ctx
}

// end records how an attempt ended.
func (t *traces) end(b *v1alpha1.Bundle, u *v1alpha1.UnpackStatus, result, reason string, began, end time.Time) {
	t.mu.Lock()
	span := t.attempts[u.Nonce]
	delete(t.attempts, u.Nonce)
	t.mu.Unlock()
	if span == nil {
		ctx, ok := root(context.Background(), b)
		if !ok {
			return
		}
		span = t.start(ctx, b, u, began)
	}
	span.SetAttributes(attribute.String("rukpak.result", result))
	if content := b.Status.Content; result == resultSucceeded && content != nil {
		span.SetAttributes(attribute.String("rukpak.digest", content.Digest), attribute.Int64("rukpak.bytes", content.Size))
	}
	if reason != "" {
		span.SetAttributes(attribute.String("rukpak.reason", reason))
	}
	if result == resultFailed {
		span.SetStatus(codes.Error, u.Message)
	}
	span.End(trace.WithTimestamp(end))
}

// newPod is the span of a pod that is about to be created.
type newPod struct {
	traces *traces
	span   trace.Span // nil where nothing is traced
	ctx    context.Context
	began  time.Time
}

// beginPod records the pod of a bundle's running attempt, for that bundle: of a shared pod each has a span of its own.
func (t *traces) beginPod(ctx context.Context, b *v1alpha1.Bundle) *newPod {
	if _, ok := root(ctx, b); !ok {
		return &newPod{}
	}
	began := time.Now()
	ctx, span := t.tracer.Start(t.within(ctx, b), "pod", trace.WithTimestamp(began), trace.WithAttributes(attribute.String("k8s.pod.name", b.Status.Unpack.PodName)))
	return &newPod{traces: t, span: span, ctx: ctx, began: began}
}

// parent is what the program in the pod belongs to.
func (n *newPod) parent() string {
	if n.span == nil {
		return ""
	}
	return traceparent.Of(n.ctx)
}

// created tells what became of the request for the pod.
func (n *newPod) created(p *corev1.Pod, err error) {
	if n.span == nil {
		return
	}
	if err != nil {
		n.span.SetStatus(codes.Error, err.Error())
		n.span.End()
		return
	}
	n.span.SetAttributes(attribute.String("k8s.pod.uid", string(p.UID)))
	n.traces.mu.Lock()
	defer n.traces.mu.Unlock()
	if n.traces.pods == nil {
		n.traces.pods = map[types.UID][]podTrace{}
	}
	n.traces.pods[p.UID] = append(n.traces.pods[p.UID], podTrace{n.span, n.began})
}

// endPod records what the time of a pod went to that is gone. Its status knows whole seconds, which begin before the
// pod does.
func (t *traces) endPod(uid types.UID, times pod.Times) {
	t.mu.Lock()
	found := t.pods[uid]
	delete(t.pods, uid)
	t.mu.Unlock()
	for _, p := range found {
		ctx := trace.ContextWithSpan(context.Background(), p.span)
		scheduled := later(p.began, times.Scheduled)
		if _, ok := times.Scheduling(); ok {
			t.part(ctx, "scheduling", p.began, scheduled)
		}
		if _, ok := times.Pull(); ok {
			t.part(ctx, "pull", scheduled, later(scheduled, times.Started))
		}
		p.span.End()
	}
}

func (t *traces) part(ctx context.Context, name string, from, to time.Time) {
	_, span := t.tracer.Start(ctx, name, trace.WithTimestamp(from))
	span.End(trace.WithTimestamp(to))
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// abandon ends what another replica goes on with.
func (t *traces) abandon() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, span := range t.attempts {
		span.AddEvent("this replica leads no more")
		span.End()
	}
	for _, spans := range t.pods {
		for _, p := range spans {
			p.span.End()
		}
	}
	t.attempts, t.pods = nil, nil
}
