// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

const (
	// countsVariable says how many there are at once, in place of 50: a list, as in 50,200.
	countsVariable = "RUKPAK_BENCH_AT_ONCE"
	// manyRounds is how often so many are measured. 50 of each take about two minutes.
	manyRounds = 2
	// idleTime is how long the server is watched while nothing is asked of it.
	idleTime = time.Minute
	// idleBundles is how many bundles it has meanwhile.
	idleBundles = 1000
)

// manyFigures are the times from the creation of many bundles at once until all are Ready, against as many pods that mount
// the same images until all are Succeeded, and what the server costs meanwhile.
func (s *scope) manyFigures() []figure {
	s.Helper()
	var figures []figure
	for _, count := range s.counts() {
		images := make([]string, max(count/10, 1))
		for i := range images {
			images[i] = s.push(fmt.Sprintf("many-%d-%d", count, i), v1.Config{}, append(manifests(), file{"manifests/own", 0o644, fmt.Append(nil, i)})...)
		}
		var ours, bare, cpu []float64
		for round := range rounds(s.T, manyRounds) {
			sides := []func(){
				func() {
					before, err := s.metric("process_cpu_seconds_total")
					s.must(err)
					s.keep(&ours, round, s.bundlesReady(fmt.Sprintf("many-%d-%d", count, round), images, count))
					after, err := s.metric("process_cpu_seconds_total")
					s.must(err)
					cpu = append(cpu, (after-before)/float64(count))
				},
				func() { s.keep(&bare, round, s.podsSucceeded(fmt.Sprintf("bare-%d-%d", count, round), images, count)) },
			}
			for i := range sides {
				sides[(i+round)%len(sides)]()
			}
		}
		figures = append(figures,
			compared(fmt.Sprintf("%d bundles at once to Ready, images present, by digest", count), "s", ours,
				"as many bare pods with the same image volumes at once, to Succeeded", bare, "≤ 0.25"),
			figure{Name: fmt.Sprintf("CPU of the server for each of %d bundles at once", count), Unit: "s", Ours: over(cpu)})
	}
	return figures
}

func (s *scope) counts() []int {
	s.Helper()
	text := os.Getenv(countsVariable)
	if text == "" {
		return []int{50}
	}
	var counts []int
	for item := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(item)
		if err != nil || n < 1 {
			s.Fatalf("%s: %q is no list of numbers", countsVariable, text)
		}
		counts = append(counts, n)
	}
	return counts
}

// idleFigures are what the server costs when it has many bundles and nothing to do.
func (s *scope) idleFigures() []figure {
	s.Helper()
	body, err := archiveOf(manifests())
	s.must(err)
	bundles := s.rukpak.RukpakV1alpha1().Bundles(s.ns)
	s.parallel(idleBundles, func(i int) error {
		name := fmt.Sprintf("idle-%04d", i)
		if _, err := bundles.Create(s.Context(), &v1alpha1.Bundle{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1alpha1.BundleSpec{ProvisionerClassName: s.class, Source: v1alpha1.BundleSource{Type: v1alpha1.SourceTypeUpload}},
		}, metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := bundles.PutContent(s.Context(), name, bytes.NewReader(body), typed.PutContentOptions{})
		return err
	})
	time.Sleep(10 * time.Second) // what follows from the uploads is not to be measured: caches, events, the first marks
	before, err := s.metric("process_cpu_seconds_total")
	s.must(err)
	start := time.Now()
	time.Sleep(idleTime)
	after, err := s.metric("process_cpu_seconds_total")
	s.must(err)
	busy := (after - before) / time.Since(start).Seconds()
	memory := s.residentMemory()
	s.must(bundles.DeleteCollection(s.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	return []figure{
		{Name: fmt.Sprintf("CPU of the server in a minute with %d bundles and nothing to do", idleBundles), Unit: "cores", Ours: over([]float64{busy})},
		{Name: fmt.Sprintf("memory of the server with %d bundles (RSS)", idleBundles), Unit: "MiB", Ours: over([]float64{memory})},
	}
}

// parallel does something so many times, some of them at the same time.
func (s *scope) parallel(count int, do func(i int) error) {
	s.Helper()
	next := make(chan int)
	var makers sync.WaitGroup
	for range 16 {
		makers.Go(func() {
			for i := range next {
				if err := do(i); err != nil {
					s.Error(err)
				}
			}
		})
	}
	for i := range count {
		next <- i
	}
	close(next)
	makers.Wait()
}

// bundlesReady makes bundles at once and returns how long it took until all are Ready.
func (s *scope) bundlesReady(prefix string, images []string, count int) time.Duration {
	s.Helper()
	bundles := s.rukpak.RukpakV1alpha1().Bundles(s.ns)
	took := s.allDone(prefix, count, func() (watch.Interface, error) {
		return bundles.Watch(s.Context(), metav1.ListOptions{})
	}, func(i int) error {
		_, err := bundles.Create(s.Context(), &v1alpha1.Bundle{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%03d", prefix, i)},
			Spec: v1alpha1.BundleSpec{ProvisionerClassName: s.class, Source: v1alpha1.BundleSource{
				Type: v1alpha1.SourceTypeImage, Image: &v1alpha1.ImageSource{Reference: images[i%len(images)]},
			}},
		}, metav1.CreateOptions{})
		return err
	}, func(object runtime.Object) (string, bool, error) {
		b, ok := object.(*v1alpha1.Bundle)
		if !ok {
			return "", false, fmt.Errorf("watched a %T", object)
		}
		if u := b.Status.Unpack; u != nil && u.Failures > 0 {
			return "", false, fmt.Errorf("an attempt of %s failed: %s: %s", b.Name, u.Reason, u.Message)
		}
		return b.Name, meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionReady), nil
	})
	s.noPods()
	s.must(bundles.DeleteCollection(s.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	return took
}

// podsSucceeded makes pods at once that end at once, and returns how long it took until all are Succeeded.
func (s *scope) podsSucceeded(prefix string, images []string, count int) time.Duration {
	s.Helper()
	program := s.serverImage()
	pods := s.kube.CoreV1().Pods(s.ns)
	took := s.allDone(prefix, count, func() (watch.Interface, error) {
		return pods.Watch(s.Context(), metav1.ListOptions{LabelSelector: "app=bench"})
	}, func(i int) error {
		_, err := pods.Create(s.Context(), barePod(fmt.Sprintf("%s-%03d", prefix, i), program, images[i%len(images)]), metav1.CreateOptions{})
		return err
	}, func(object runtime.Object) (string, bool, error) {
		p, ok := object.(*corev1.Pod)
		if !ok {
			return "", false, fmt.Errorf("watched a %T", object)
		}
		if p.Status.Phase == corev1.PodFailed {
			return "", false, fmt.Errorf("pod %s failed: %s", p.Name, p.Status.Message)
		}
		return p.Name, p.Status.Phase == corev1.PodSucceeded, nil
	})
	s.must(pods.DeleteCollection(s.Context(), metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}, metav1.ListOptions{LabelSelector: "app=bench"}))
	s.noPods()
	return took
}

// allDone makes objects at once, and watches until as many of those with the prefix are done.
func (s *scope) allDone(prefix string, count int, open func() (watch.Interface, error), create func(int) error, done func(runtime.Object) (string, bool, error)) time.Duration {
	s.Helper()
	events, err := open()
	s.must(err)
	defer func() { events.Stop() }()
	start := time.Now()
	made := make(chan struct{})
	go func() { defer close(made); s.parallel(count, create) }()
	limit := time.NewTimer(10 * patience)
	defer limit.Stop()
	finished := map[string]bool{}
	for len(finished) < count {
		select {
		case event, ok := <-events.ResultChan():
			if !ok {
				// An API server without time ends a watch that falls behind. The next one begins with all that there is.
				events, err = open()
				s.must(err)
				continue
			}
			name, is, err := done(event.Object)
			if err != nil {
				s.Fatal(err)
			}
			if is && strings.HasPrefix(name, prefix) {
				finished[name] = true
			}
		case <-limit.C:
			s.Fatalf("%s: %d of %d in %v", prefix, len(finished), count, time.Since(start))
		}
	}
	took := time.Since(start)
	<-made
	s.Logf("%s: %d in %v", prefix, count, took)
	return took
}
