// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"bytes"
	"io"
	"net/http"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"k8s.io/component-base/metrics/legacyregistry"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/traceparent"
	"rukpak.io/apiserver/pkg/unpack/contract"
	"rukpak.io/apiserver/pkg/unpack/stage"
)

// stageCounts is how often each stage was measured.
func stageCounts(t *testing.T) map[string]uint64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]uint64{}
	for _, f := range families {
		if f.GetName() != "rukpak_unpack_stage_duration_seconds" {
			continue
		}
		for _, m := range f.GetMetric() {
			counts[m.GetLabel()[0].GetValue()] = m.GetHistogram().GetSampleCount()
		}
	}
	return counts
}

func TestStagesOfAnAttempt(t *testing.T) {
	const (
		trace = "0123456789abcdef0123456789abcdef"
		made  = "00-" + trace + "-1111111111111111-01"
		own   = "00-" + trace + "-2222222222222222-01"
	)
	for name, test := range map[string]struct {
		annotation, header string
		walk               string
		parent             string // of the spans; empty for none
		walked             uint64
	}{
		"traced":                       {made, own, "1ms", "2222222222222222", 1},
		"no header":                    {made, "", "1ms", "1111111111111111", 1},
		"a header of another trace":    {made, "00-ffffffffffffffffffffffffffffffff-2222222222222222-01", "1ms", "1111111111111111", 1},
		"not traced":                   {"", own, "1ms", "", 1},
		"a program that does not say":  {made, own, "", "2222222222222222", 0},
		"a program that says nonsense": {made, own, "-1h", "2222222222222222", 0},
		"a program that says too much": {made, own, "1000h", "2222222222222222", 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.rest.Stages = stage.NewNotes()
			recorder := tracetest.NewSpanRecorder()
			w.rest.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
			b := w.addImage("image")
			if test.annotation != "" {
				b.Annotations = map[string]string{v1alpha1.AnnotationTraceParent: test.annotation}
			}
			w.caller = podCaller("team", "unpack", "pod-uid")
			// As soon as the status is written the reconciler tells of the attempt.
			var noted map[stage.Stage]time.Duration
			w.bundles.meanwhile = func(*rukpak.Bundle) { noted = w.rest.Stages.Of("nonce") }
			before := stageCounts(t)
			body, _ := canonical(t, archive(t, map[string]string{"file": "1"}))
			// A reader that is not known has no length, so that the trailer is sent.
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, w.server.URL+"/image", io.MultiReader(bytes.NewReader(body)))
			if err != nil {
				t.Fatal(err)
			}
			if test.header != "" {
				req.Header.Set(traceparent.Header, test.header)
			}
			req.Trailer = http.Header{contract.TrailerWalk: {test.walk}}
			res, err := w.server.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if err := res.Body.Close(); err != nil || res.StatusCode != http.StatusCreated {
				t.Fatalf("%d, %v", res.StatusCode, err)
			}
			<-w.served
			after := stageCounts(t)
			for in, want := range map[stage.Stage]uint64{stage.Walk: test.walked, stage.Upload: 1, stage.Commit: 1} {
				if got := after[string(in)] - before[string(in)]; got != want {
					t.Errorf("stage %s was measured %d times, want %d", in, got, want)
				}
				if _, ok := noted[in]; ok != (want > 0) {
					t.Errorf("of stage %s the reconciler knows: %v", in, ok)
				}
			}
			want := map[string]bool{}
			if test.parent != "" {
				want = map[string]bool{"upload": true, "commit": true}
				if test.walked > 0 {
					want["walk"] = true
				}
			}
			for _, s := range recorder.Ended() {
				if !want[s.Name()] || s.Parent().SpanID().String() != test.parent || s.SpanContext().TraceID().String() != trace || s.EndTime().Before(s.StartTime()) {
					t.Errorf("span %s belongs to %s and goes from %v to %v", s.Name(), s.Parent().SpanID(), s.StartTime(), s.EndTime())
				}
				delete(want, s.Name())
			}
			if len(want) > 0 {
				t.Errorf("spans are missing: %v", want)
			}
		})
	}
}

func TestUploadsOfClientsAreNoStages(t *testing.T) {
	w := newWorld(t)
	w.addUpload("app")
	before := stageCounts(t)
	w.put("app", "1")
	for stage, n := range stageCounts(t) {
		if n != before[stage] {
			t.Errorf("stage %s was measured", stage)
		}
	}
}
