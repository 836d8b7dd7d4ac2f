// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/traceparent"
	"rukpak.io/apiserver/pkg/unpack/contract"
	"rukpak.io/apiserver/pkg/unpack/stage"
)

// stageTimes measures what the time of an attempt's write goes to. Of other writes it measures nothing.
type stageTimes struct {
	bundle *rukpak.Bundle
	tracer trace.Tracer
	notes  *stage.Notes
	req    *http.Request
	body   *pacedReader
	got    time.Time // the last byte; zero before
	traced bool
	span   trace.Span // of the commit
}

func (r *REST) measure(b *rukpak.Bundle, g *grant, req *http.Request, body *pacedReader) *stageTimes {
	if !g.attempt {
		return nil
	}
	return &stageTimes{bundle: b, tracer: r.Tracer, notes: r.Stages, req: req, body: body}
}

// received is called when the body is whole and right. In the context that it returns the spans and the log of the
// commit belong to the attempt.
func (s *stageTimes) received(ctx context.Context) context.Context {
	if s == nil {
		return ctx
	}
	s.got = time.Now()
	upload := s.got.Sub(s.body.Began)
	log := klog.FromContext(ctx).WithValues("attempt", s.bundle.Status.Unpack.Attempt)
	ctx, s.traced = s.within(ctx)
	// What a program says about itself is taken for no more than the time that there was.
	walk, err := time.ParseDuration(s.req.Trailer.Get(contract.TrailerWalk))
	if known := err == nil && walk >= 0; known {
		walk = min(walk, upload)
		upload -= walk
		s.spent(stage.Walk, walk)
		log = log.WithValues("walkSeconds", walk.Seconds())
		s.part(ctx, "walk", s.body.Began.Add(walk))
	}
	s.spent(stage.Upload, upload)
	s.part(ctx, "upload", s.got)
	if s.traced {
		ctx, s.span = s.tracer.Start(ctx, "commit", trace.WithTimestamp(s.got))
	}
	return klog.NewContext(ctx, log.WithValues("uploadSeconds", upload.Seconds()))
}

// spent counts the time of a stage, and notes it for the line that tells of the attempt.
func (s *stageTimes) spent(in stage.Stage, d time.Duration) {
	stage.Observe(in, d)
	s.notes.Add(s.bundle.Status.Unpack.Nonce, in, d)
}

// part records what began with the body. Reading the files and sending them go on at the same time: walk is drawn
// from the beginning, as long as it took in sum.
func (s *stageTimes) part(ctx context.Context, name string, end time.Time) {
	if !s.traced {
		return
	}
	_, span := s.tracer.Start(ctx, name, trace.WithTimestamp(s.body.Began), trace.WithAttributes(attribute.Int64("rukpak.bytes", s.body.Bytes)))
	span.End(trace.WithTimestamp(end))
}

// within is where the spans of the write belong: to the span that the request names, if that is of the trace of its
// bundle, else to that of the bundle. The generic server begins a trace for each request of a pod, since it
// lets nobody choose what is recorded; here it was chosen when the bundle was made.
func (s *stageTimes) within(ctx context.Context) (_ context.Context, traced bool) {
	made := s.bundle.Annotations[v1alpha1.AnnotationTraceParent]
	want, ok := traceparent.Parse(made)
	if !ok {
		return ctx, false
	}
	if trace.SpanContextFromContext(ctx).TraceID() == want.TraceID() {
		return ctx, true
	}
	sent := s.req.Header.Get(traceparent.Header)
	if named, ok := traceparent.Parse(sent); ok && named.TraceID() == want.TraceID() {
		made = sent
	}
	return traceparent.With(ctx, made), true
}

// committing is called when all that is left of the commit is the status. The reconciler, which tells of the attempt as soon as it
// sees that one, knows of the time until here.
func (s *stageTimes) committing() {
	if s != nil {
		s.notes.Add(s.bundle.Status.Unpack.Nonce, stage.Commit, time.Since(s.got))
	}
}

// end is called when the write has ended.
func (s *stageTimes) end(err error) {
	if s == nil || s.got.IsZero() {
		return
	}
	if err == nil {
		stage.Observe(stage.Commit, time.Since(s.got))
	}
	if s.span == nil {
		return
	}
	if err != nil {
		s.span.SetStatus(codes.Error, err.Error())
	}
	s.span.End()
}
