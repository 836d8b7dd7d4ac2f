// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package stores

import (
	"archive/tar"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// mostClients is the most clients of a figure.
const mostClients = 64

// etcdBytes is the most that all clients of a figure write to the store etcd at once, which is for small content.
const etcdBytes = 512 << 20

// load is a size of content and how it is asked for.
type load struct {
	name    string
	size    int
	clients []int
	// each is how many requests all clients of a round make together at least.
	each int
	// full means that it is measured only when asked for.
	full bool
}

var loads = []load{
	{name: "20 KiB", size: 20 << 10, clients: []int{1, 8, 64}, each: 256},
	{name: "64 MiB", size: 64 << 20, clients: []int{1, 8, 64}, each: 1},
	{name: "1 GiB", size: 1 << 30, clients: []int{1, 8}, each: 1, full: true},
}

// line is one line of the table.
type line struct {
	store, operation, load, way string
	clients                     int
	rate, perCPU, p50, p99      float64 // MB/s, MB per second of the server's processors, ms
	bare                        float64 // the rate of the bare TLS server at the same
	files                       float64 // and that of http.FileServer
}

// measureTransfers measures reads and writes with each store.
func measureTransfers(t *testing.T) {
	bare := startBare(t)
	namespace := newNamespace(t)
	var table []line
	defer func() { report(t, table) }() // what there is, when a figure fails
	for _, l := range loads {
		if l.full && !*full || !wanted(*onlyLoad, l.name) {
			continue
		}
		if *onlyClients != 0 {
			l.clients = []int{*onlyClients}
		}
		body := archive(t, l.size)
		baseline := map[int][2]line{}
		for _, clients := range l.clients {
			baseline[clients] = [2]line{bare.tls.reads(t, l, clients, bare.path(len(body)), int64(len(body))), bare.files.reads(t, l, clients, bare.file(t, body), int64(len(body)))}
		}
		for _, store := range storeNames {
			if !wanted(*onlyStore, store) {
				continue
			}
			class := classFor(t, store)
			for _, way := range []target{straight(t), through(t)} {
				if !wanted(*onlyWay, way.name) {
					continue
				}
				for _, clients := range l.clients {
					if store == "etcd" && clients*l.size > etcdBytes {
						continue
					}
					written := way.writes(t, l, clients, namespace, class, body)
					written.store = store
					path, size := content(t, namespace, fmt.Sprintf("%s-%d-0", class, clients))
					read := way.reads(t, l, clients, path, size)
					read.store, read.bare, read.files = store, baseline[clients][0].rate, baseline[clients][1].rate
					table = append(table, read, written)
				}
			}
		}
	}
	if len(table) == 0 {
		t.Errorf("nothing was measured: no transfer has -store %q, -size %q, -way %q and -clients %d (1 GiB takes -full)", *onlyStore, *onlyLoad, *onlyWay, *onlyClients)
	}
}

// wanted reports whether a part of the transfers is to be measured.
func wanted(only, name string) bool { return only == "" || only == name }

// measure runs rounds of requests and sums them up. do makes the request number i of a client.
func (w target) measure(t *testing.T, l load, clients, size int, do func(client, i int) error) line {
	t.Helper()
	each := max(1, l.each/clients)
	var rates, perCPU []float64
	var took []time.Duration
	for round := -1; round < *limit; round++ {
		before := cpu(t, w.process)
		durations, all := together(t, clients, each, do)
		if round < 0 {
			continue // warming up
		}
		megabytes := float64(size) * float64(clients*each) / 1e6
		rates = append(rates, megabytes/all.Seconds())
		// A tick of the processor's clock is 10 ms.
		perCPU = append(perCPU, megabytes/max(0.01, cpu(t, w.process)-before))
		took = append(took, durations...)
	}
	slices.Sort(took)
	at := func(share float64) float64 { return took[int(share*float64(len(took)-1))].Seconds() * 1e3 }
	return line{load: l.name, way: w.name, clients: clients, rate: median(rates), perCPU: median(perCPU), p50: at(0.5), p99: at(0.99)}
}

// together makes requests from several clients at once.
func together(t *testing.T, clients, each int, do func(client, i int) error) (took []time.Duration, all time.Duration) {
	t.Helper()
	durations, failed := make([][]time.Duration, clients), make([]error, clients)
	var group sync.WaitGroup
	start := time.Now()
	for c := range clients {
		group.Go(func() {
			for i := range each {
				begin := time.Now()
				if failed[c] = do(c, i); failed[c] != nil {
					return
				}
				durations[c] = append(durations[c], time.Since(begin))
			}
		})
	}
	group.Wait()
	all = time.Since(start)
	if err := errors.Join(failed...); err != nil {
		t.Fatal(err)
	}
	return slices.Concat(durations...), all
}

func (w target) reads(t *testing.T, l load, clients int, path string, size int64) line {
	t.Helper()
	buffers := make([][]byte, clients)
	for i := range buffers {
		buffers[i] = make([]byte, readBuffer)
	}
	result := w.measure(t, l, clients, int(size), func(client, _ int) error {
		return w.get(t.Context(), path, size, buffers[client])
	})
	result.operation = "GET"
	return result
}

// writes has each client write to a bundle of its own.
func (w target) writes(t *testing.T, l load, clients int, namespace, class string, body []byte) line {
	t.Helper()
	paths := make([]string, clients)
	for i := range paths {
		name := fmt.Sprintf("%s-%d-%d", class, clients, i)
		makeBundle(t, namespace, name, class)
		paths[i] = contentPath(namespace, name)
	}
	result := w.measure(t, l, clients, len(body), func(client, _ int) error {
		return w.put(t.Context(), paths[client], body)
	})
	result.operation = "PUT"
	return result
}

func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// archive is a tar of one file of bytes that do not compress.
func archive(t testing.TB, size int) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	data := make([]byte, size)
	if _, err := rand.NewChaCha8([32]byte{byte(size >> 10)}).Read(data); err != nil {
		t.Fatal(err)
	}
	err := w.WriteHeader(&tar.Header{Name: "noise", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(size)})
	if err == nil {
		_, err = w.Write(data)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func contentPath(namespace, name string) string {
	return "/apis/" + v1alpha1.SchemeGroupVersion.String() + "/namespaces/" + namespace + "/bundles/" + name + "/content"
}

// content is the path and the size of a bundle's content.
func content(t testing.TB, namespace, name string) (path string, size int64) {
	t.Helper()
	b, err := shared.Rukpak.RukpakV1alpha1().Bundles(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || b.Status.Content == nil {
		t.Fatalf("bundle %s: %v, status %+v", name, err, b.Status)
	}
	return contentPath(namespace, name), b.Status.Content.Size
}

func report(t *testing.T, table []line) {
	t.Helper()
	slices.SortStableFunc(table, func(a, b line) int {
		return cmp.Or(cmp.Compare(a.operation, b.operation), cmp.Compare(a.load, b.load), cmp.Compare(a.clients, b.clients))
	})
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "operation\tsize\tclients\tstore\tway\tMB/s\tMB per CPU-s\tp50 ms\tp99 ms\tto bare TLS\tto http.FileServer")
	for _, l := range table {
		bare, files := "", ""
		if l.bare > 0 {
			bare, files = fmt.Sprintf("%.2f", l.rate/l.bare), fmt.Sprintf("%.2f", l.rate/l.files)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%.1f\t%.1f\t%.2f\t%.2f\t%s\t%s\n", l.operation, l.load, l.clients, l.store, l.way, l.rate, l.perCPU, l.p50, l.p99, bare, files)
	}
	if err := w.Flush(); err != nil {
		t.Error(err)
	}
}
