// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package stores

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// many is what a number of bundles costs.
type many struct {
	bundles                     int
	memory, memoryAfterRestart  float64 // MiB
	ready, first                float64 // seconds
	list, page, watch, newWatch float64 // ms, p50
	commit                      float64 // ms, p50
}

// measureMany measures what bundles with content cost, and that a restart fetches none again.
func measureMany(t *testing.T) {
	counts := []int{100, 1000}
	if *full {
		counts = append(counts, 10000)
	}
	namespace := newNamespace(t)
	class := classFor(t, "default")
	body := archive(t, 1<<10)
	var table []many
	made := 0
	for _, count := range counts {
		m := many{bundles: count}
		m.commit = makeMany(t, namespace, class, body, made, count)
		made = count
		m.memory = resident(t, shared.server.Process)
		before := updated(t, namespace, made)
		m.ready, m.first = restart(t, contentPath(namespace, bundleName(made-1)))
		m.memoryAfterRestart = resident(t, shared.server.Process)
		if after := updated(t, namespace, made); !slices.Equal(before, after) {
			t.Errorf("of %d bundles some have other content after a restart", made)
		}
		way := straight(t) // its certificate is new
		listPath := "/apis/" + v1alpha1.SchemeGroupVersion.String() + "/namespaces/" + namespace + "/bundles"
		m.list = latency(t, 10, func() { read(t, way, listPath+"?resourceVersion=0") })
		m.page = latency(t, 10, func() { read(t, way, listPath+"?limit=500") })
		m.watch, m.newWatch = watchLatency(t, namespace)
		table = append(table, m)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "bundles\tRSS MiB\tafter restart\tstart to ready s\tready to first content s\tlist ms\tpage of 500 ms\twatch event ms\tnew watch ms\tcreate and commit 1 KiB ms")
	for _, m := range table {
		fmt.Fprintf(w, "%d\t%.0f\t%.0f\t%.2f\t%.3f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\n",
			m.bundles, m.memory, m.memoryAfterRestart, m.ready, m.first, m.list, m.page, m.watch, m.newWatch, m.commit)
	}
	if err := w.Flush(); err != nil {
		t.Error(err)
	}
}

func bundleName(i int) string { return fmt.Sprintf("b-%05d", i) }

// makeMany makes the bundles from and up to, with content, and returns how long one of them takes.
func makeMany(t *testing.T, namespace, class string, body []byte, from, to int) float64 {
	t.Helper()
	const makers = 8
	way := straight(t)
	next := make(chan int)
	took := make([][]time.Duration, makers)
	var group sync.WaitGroup
	for m := range makers {
		group.Go(func() {
			for i := range next {
				begin := time.Now()
				makeBundle(t, namespace, bundleName(i), class)
				if err := way.put(t.Context(), contentPath(namespace, bundleName(i)), body); err != nil {
					t.Error(err)
				}
				took[m] = append(took[m], time.Since(begin))
			}
		})
	}
	for i := from; i < to; i++ {
		next <- i
	}
	close(next)
	group.Wait()
	if t.Failed() {
		t.FailNow()
	}
	all := slices.Sorted(slices.Values(slices.Concat(took...)))
	return all[len(all)/2].Seconds() * 1e3
}

// updated are the times at which contents were committed, by the order of names.
func updated(t *testing.T, namespace string, want int) []time.Time {
	t.Helper()
	list, err := shared.Rukpak.RukpakV1alpha1().Bundles(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var times []time.Time
	for _, b := range list.Items {
		if b.Status.Content == nil {
			t.Fatalf("bundle %s has no content", b.Name)
		}
		times = append(times, b.Status.Content.UpdateTime.Time)
	}
	if len(times) != want {
		t.Fatalf("%d bundles, want %d", len(times), want)
	}
	return times
}

// restart kills the server and starts it again. It returns how long it takes until it is ready, and from then
// until it has served content.
func restart(t *testing.T, path string) (ready, first float64) {
	t.Helper()
	if err := shared.server.Kill(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := shared.server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready = time.Since(begin).Seconds()
	way := straight(t)
	begin = time.Now()
	read(t, way, path)
	return ready, time.Since(begin).Seconds()
}

// read reads whatever a path gives.
func read(t *testing.T, w target, path string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := w.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, %v", path, resp.Status, err)
	}
}

// latency is the median of so many calls, in ms.
func latency(t *testing.T, times int, do func()) float64 {
	t.Helper()
	var took []float64
	for range times {
		begin := time.Now()
		do()
		took = append(took, time.Since(begin).Seconds()*1e3)
	}
	return median(took)
}

// watchLatency is how long an event of a watch takes, from the update that causes it, and how long a new watch takes
// to its first event.
func watchLatency(t *testing.T, namespace string) (event, begin float64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	bundles := shared.Rukpak.RukpakV1alpha1().Bundles(namespace)
	options := metav1.ListOptions{FieldSelector: "metadata.name=" + bundleName(0)}
	begin = latency(t, 10, func() {
		w, err := bundles.Watch(ctx, options)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		if _, open := <-w.ResultChan(); !open {
			t.Fatal("a watch ended")
		}
	})
	w, err := bundles.Watch(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	<-w.ResultChan() // what there is
	round := 0
	event = latency(t, 20, func() {
		round++
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{"round": fmt.Sprintf("%d-%d", time.Now().UnixNano(), round)}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bundles.Patch(ctx, bundleName(0), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, open := <-w.ResultChan(); !open {
			t.Fatal("a watch ended")
		}
	})
	return event, begin
}
