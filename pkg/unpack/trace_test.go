// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/traceparent"
	"rukpak.io/apiserver/pkg/unpack/contract"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

const (
	testTrace  = "0123456789abcdef0123456789abcdef"
	testParent = "fedcba9876543210"
)

func traced(b *v1alpha1.Bundle) {
	metav1.SetMetaDataAnnotation(&b.ObjectMeta, v1alpha1.AnnotationTraceParent, "00-"+testTrace+"-"+testParent+"-01")
}

// record lets a world record its spans.
func record(w *world) *tracetest.SpanRecorder {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
	w.config.Tracer = provider.Tracer("test")
	return recorder
}

// spans returns the spans that have ended, by their names.
func spans(t *testing.T, r *tracetest.SpanRecorder) map[string]sdktrace.ReadOnlySpan {
	t.Helper()
	byName := map[string]sdktrace.ReadOnlySpan{}
	for _, s := range r.Ended() {
		if got := s.SpanContext().TraceID().String(); got != testTrace {
			t.Errorf("span %s is of trace %s", s.Name(), got)
		}
		if s.EndTime().Before(s.StartTime()) {
			t.Errorf("span %s ends %v before it begins", s.Name(), s.StartTime().Sub(s.EndTime()))
		}
		byName[s.Name()] = s
	}
	return byName
}

func ran() corev1.PodStatus {
	now := metav1.NewTime(time.Now())
	return corev1.PodStatus{
		Conditions:        []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: pod.ContainerUnpack, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}}},
	}
}

func TestTraceOfAnAttempt(t *testing.T) {
	inWorld(t, started(testClass(), changedBundle(traced)), func(w *world) {
		recorder := record(w)
		w.beforeCreate = func(p *corev1.Pod) { p.CreationTimestamp = metav1.Now() }
		w.start()
		parent := ""
		for _, e := range w.onlyPod().Spec.Containers[0].Env {
			if e.Name == contract.EnvTraceParent {
				parent = e.Value
			}
		}
		w.pass(3 * time.Second)
		w.podSays(ran())
		w.commit()
		w.pass(time.Second)
		got := spans(t, recorder)
		for name, above := range map[string]string{"pod": "attempt", "scheduling": "pod", "pull": "pod"} {
			if got[name] == nil || got[above] == nil || got[name].Parent().SpanID() != got[above].SpanContext().SpanID() {
				t.Fatalf("%s below %s is missing in %v", name, above, got)
			}
		}
		if got["attempt"].Parent().SpanID().String() != testParent {
			t.Errorf("the attempt belongs to %s", got["attempt"].Parent().SpanID())
		}
		if want := "00-" + testTrace + "-" + got["pod"].SpanContext().SpanID().String() + "-01"; parent != want {
			t.Errorf("the pod was given %q, want %q", parent, want)
		}
		if took := got["scheduling"].EndTime().Sub(got["scheduling"].StartTime()); took < 2*time.Second {
			t.Errorf("scheduling took %v", took)
		}
	})
}

// A shared pod is a span of each of its bundles, in the trace of that.
func TestTraceOfASharedPod(t *testing.T) {
	objects := someBundles("team-a", 5)
	for _, o := range objects {
		if b, ok := o.(*v1alpha1.Bundle); ok {
			traced(b)
		}
	}
	inWorld(t, objects, func(w *world) {
		recorder := record(w)
		p := five(w)
		var jobs []contract.Job
		for _, e := range p.Spec.Containers[0].Env {
			if e.Name == contract.EnvJobs {
				if err := json.Unmarshal([]byte(e.Value), &jobs); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.says(p, ran())
		for _, b := range membersOf(w, p) {
			w.committed(b)
		}
		w.pass(time.Second)
		attempts, pods, pulls := map[string]bool{}, map[string]bool{}, 0
		for _, s := range recorder.Ended() {
			if s.Name() == "attempt" {
				attempts[s.SpanContext().SpanID().String()] = true
			}
		}
		for _, s := range recorder.Ended() {
			if s.Name() == "pod" && attempts[s.Parent().SpanID().String()] {
				pods[s.SpanContext().SpanID().String()] = true
			}
		}
		for _, s := range recorder.Ended() {
			if s.Name() == "pull" && pods[s.Parent().SpanID().String()] {
				pulls++
			}
		}
		if len(attempts) != 4 || len(pods) != 4 || pulls != 4 || len(jobs) != 4 {
			t.Fatalf("4 bundles have %d attempts, %d pods and %d pulls in %d jobs", len(attempts), len(pods), pulls, len(jobs))
		}
		for _, j := range jobs {
			parent, ok := traceparent.Parse(j.TraceParent)
			if !ok || !pods[parent.SpanID().String()] {
				t.Errorf("%s belongs to %q, which is no pod", j.URL, j.TraceParent)
			}
			delete(pods, parent.SpanID().String())
		}
	})
}

func TestTraceOfAFailureAndOfARestart(t *testing.T) {
	inWorld(t, started(testClass(), changedBundle(traced)), func(w *world) {
		recorder := record(w)
		w.start()
		w.stop() // its span ends with the term
		w.start()
		w.podSays(exited(1, "x"))
		w.stop()
		failed := 0
		for _, s := range recorder.Ended() {
			if s.Name() == "attempt" && s.Status().Code == codes.Error {
				failed++
			}
		}
		if failed != 1 {
			t.Errorf("%d failed attempts were recorded, of %v", failed, recorder.Ended())
		}
	})
}

func TestNoTraceWithoutOneOfTheBundle(t *testing.T) {
	inWorld(t, started(testClass(), testBundle()), func(w *world) {
		recorder := record(w)
		w.start()
		w.podSays(ran())
		w.commit()
		w.pass(time.Second)
		if got := recorder.Started(); len(got) > 0 {
			t.Errorf("recorded: %v", got)
		}
		if got := w.bundle().Status.Content; got == nil {
			t.Error("no content")
		}
	})
}

func TestTracesForgetWhatHasEnded(t *testing.T) {
	inWorld(t, started(testClass(), changedBundle(traced)), func(w *world) {
		recorder := record(w)
		tr := &traces{tracer: w.config.Tracer}
		b := w.bundle()
		b.Status.Unpack = &v1alpha1.UnpackStatus{Nonce: "n", PodName: "p"}
		tr.begin(context.Background(), b)
		tr.beginPod(context.Background(), b).created(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}, nil)
		tr.end(b, b.Status.Unpack, resultSucceeded, "", time.Now(), time.Now())
		tr.endPod("u", pod.Times{})
		if len(tr.attempts)+len(tr.pods) != 0 || len(recorder.Ended()) != 2 {
			t.Errorf("%d attempts and %d pods are kept, %d have ended", len(tr.attempts), len(tr.pods), len(recorder.Ended()))
		}
	})
}
