// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package replicas

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/content"
	"rukpak.io/apiserver/pkg/content/etcdstore"
)

const (
	readers     = 50
	writers     = 10
	contents    = 5       // that are read
	contentSize = 1 << 20 // bytes of each
	readerSpeed = 256 << 10
	writtenSize = 1200 << 10 // more than one chunk of a store in etcd
	storePrefix = "/rukpak.io/blobs/default"
	briefly     = 20 * time.Second
	// collectLimit is longer than another replica waits before it goes on with a deletion that a killed one began.
	collectLimit = 7 * time.Minute
)

// duration is how long replicas are killed. RUKPAK_KILL_DURATION makes it the two minutes of a full run.
func duration(t *testing.T) time.Duration {
	t.Helper()
	value := os.Getenv("RUKPAK_KILL_DURATION")
	if value == "" {
		return briefly
	}
	d, err := time.ParseDuration(value)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// load is what clients do while the test breaks something.
type load struct {
	t       *testing.T
	stop    context.Context // no client begins anything new after it
	working sync.WaitGroup
	reads   atomic.Int64
	writes  atomic.Int64

	mu     sync.Mutex
	digest map[string]string // of what a bundle has to have
}

// read downloads one bundle again and again.
func (l *load) read(name, want string) {
	for l.stop.Err() == nil {
		got, err := download(l.t.Context(), name, readerSpeed)
		if err != nil || got != want {
			l.t.Errorf("reading %s: digest %s in place of %s: %v", name, got, want, err)
			return
		}
		l.reads.Add(1)
	}
}

// write uploads to one bundle again and again, and reads what it wrote.
func (l *load) write(name string, seed uint64, upload func(context.Context, string, []byte) (*v1alpha1.Bundle, error)) {
	for i := uint64(0); l.stop.Err() == nil; i++ {
		body, want := archive(l.t, seed+i, writtenSize)
		b, err := upload(l.t.Context(), name, body)
		if err != nil {
			l.t.Errorf("writing %s: %v", name, err)
			return
		}
		if b.Status.Content == nil || b.Status.Content.Digest != want {
			l.t.Errorf("writing %s: it has %+v in place of %s", name, b.Status.Content, want)
			return
		}
		l.mu.Lock()
		l.digest[name] = want
		l.mu.Unlock()
		got, err := download(l.t.Context(), name, 64<<20)
		if err != nil || got != want {
			l.t.Errorf("reading %s after it was written: %s in place of %s: %v", name, got, want, err)
			return
		}
		l.writes.Add(1)
	}
}

// startLoad makes bundles of a class and begins to read and to write.
func startLoad(t *testing.T, ctx context.Context, class string) *load {
	t.Helper()
	l := &load{t: t, stop: ctx, digest: map[string]string{}}
	for i := range contents {
		name := fmt.Sprintf("read-%d", i)
		newBundle(t, class, name)
		body, digest := archive(t, uint64(1000+i), contentSize)
		if _, err := upload(t.Context(), name, body); err != nil {
			t.Fatal(err)
		}
		l.digest[name] = digest
	}
	for i := range readers {
		name := fmt.Sprintf("read-%d", i%contents)
		want := l.digest[name]
		l.working.Go(func() { l.read(name, want) })
	}
	for i := range writers {
		name := fmt.Sprintf("write-%d", i)
		newBundle(t, class, name)
		send := upload
		if i%2 == 0 {
			send = uploadInParts
		}
		l.working.Go(func() { l.write(name, uint64(10_000*(i+1)), send) })
	}
	return l
}

// TestKilledReplicas kills one replica after the other while clients read and write content in etcd.
func TestKilledReplicas(t *testing.T) {
	client, err := shared.etcd.Client(shared.etcd.Endpoints()...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	killReplicas(t, "raw", etcdstore.New(client, storePrefix, etcdstore.DefaultCapacity))
}

// killReplicas kills one replica after the other, with kill -9, while clients read and write bundles of a class, whose
// content is in a store.
func killReplicas(t *testing.T, class string, store content.Store) {
	t.Helper()
	idle := resources(t)
	ctx, cancel := context.WithTimeout(t.Context(), duration(t))
	defer cancel()
	l := startLoad(t, ctx, class)
	kills := 0
	for ; ctx.Err() == nil; kills++ {
		// Not ctx: what was killed is started again whatever the time.
		if err := shared.Restart(t.Context(), kills%replicas); err != nil {
			t.Fatal(err)
		}
	}
	l.working.Wait()
	t.Logf("%d replicas killed; %d downloads, %d uploads", kills, l.reads.Load(), l.writes.Load())
	if kills < replicas || l.reads.Load() < readers || l.writes.Load() < writers {
		t.Error("too little happened for this to mean anything")
	}
	everythingIsThere(t, l.digest)
	eventually(t, "no orphans", collectLimit, func(ctx context.Context) error { return noOrphans(ctx, store) })
	eventually(t, "no leaks", 3*time.Minute, func(context.Context) error { return idle.compare(t) })
}

// everythingIsThere reads each bundle through each replica.
func everythingIsThere(t *testing.T, want map[string]string) {
	t.Helper()
	for name, digest := range want {
		b, err := bundles().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Error(err)
			continue
		}
		if b.Status.Content == nil || b.Status.Content.Digest != digest {
			t.Errorf("bundle %s has %+v in place of %s", name, b.Status.Content, digest)
		}
		for i, s := range shared.Servers {
			body, err := shared.Fetch(t.Context(), s, "/apis/rukpak.io/v1alpha1/namespaces/"+namespace+"/bundles/"+name+"/content")
			if err != nil || digestOf(body) != digest {
				t.Errorf("replica %d serves %s as %s in place of %s: %v", i, name, digestOf(body), digest, err)
			}
		}
	}
}

// noOrphans compares what is stored with what bundles name.
func noOrphans(ctx context.Context, store content.Store) error {
	list, err := shared.Rukpak.RukpakV1alpha1().Bundles(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	named := map[string]bool{}
	for _, b := range list.Items {
		if b.Status.Content != nil {
			named[b.Status.Content.Digest] = true
		}
		for _, c := range b.Status.History {
			named[c.Digest] = true
		}
	}
	stored := map[string]bool{}
	err = store.Walk(ctx, func(i content.Info) error {
		stored[i.Digest] = true
		return nil
	})
	if err != nil {
		return err
	}
	var problems []string
	for digest := range stored {
		if !named[digest] {
			problems = append(problems, digest+" is stored, and no bundle has it")
		}
	}
	for digest := range named {
		if !stored[digest] {
			problems = append(problems, digest+" is not stored")
		}
	}
	if len(problems) > 0 {
		slices.Sort(problems)
		return errors.New(strings.Join(problems, "; "))
	}
	return nil
}

// usage is what a replica holds, by the names of the metrics.
type usage []map[string]float64

// slack is by how much a replica may hold more than when it had just started: connections that clients keep.
var slack = map[string]float64{"process_open_fds": 40, "go_goroutines": 200}

func resources(t *testing.T) usage {
	t.Helper()
	var all usage
	for _, s := range shared.Servers {
		m, err := shared.Metrics(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

// compare says what a replica holds too much of.
func (before usage) compare(t *testing.T) error {
	t.Helper()
	var errs []error
	for i, now := range resources(t) {
		for name, more := range slack {
			if now[name] > before[i][name]+more {
				errs = append(errs, fmt.Errorf("replica %d: %s was %v and is %v", i, name, before[i][name], now[name]))
			}
		}
	}
	return errors.Join(errs...)
}
