// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// world is what replicas share: what is kept, and what clients trust. Each is replaced by a write that names its version.
type world struct {
	mu        sync.Mutex
	kept      map[string][]byte // nil if it was lost
	requested string
	version   int
	bundle    []byte
	published int
	away      error
	nobody    bool
}

func newWorld(t *testing.T, id *Identity) *world {
	t.Helper()
	return &world{kept: encoded(t, id), version: 1, bundle: id.Trusted(), published: 1}
}

func (w *world) load() (*Identity, string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.away != nil {
		return nil, "", w.away
	}
	if w.kept == nil {
		return nil, "", ErrNotFound
	}
	id, err := decode(w.kept)
	if err != nil {
		return nil, "", err
	}
	id.Requested = w.requested
	return id, strconv.Itoa(w.version), nil
}

func (w *world) save(id *Identity, version string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.away != nil {
		return w.away
	}
	if want := strconv.Itoa(w.version); (version == "") != (w.kept == nil) || version != "" && version != want {
		return ErrConflict
	}
	data, err := id.encode()
	if err != nil {
		return err
	}
	w.kept, w.version = data, w.version+1
	return nil
}

func (w *world) look() (bundle []byte, version int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bundle, w.published, w.away
}

func (w *world) replace(bundle []byte, version int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.away != nil {
		return w.away
	}
	if version != w.published {
		return ErrConflict
	}
	w.bundle, w.published = bundle, w.published+1
	return nil
}

// replica is one replica's way to the world. before is called before each call.
type replica struct {
	world  *world
	before func()
}

func (r replica) wait() {
	if r.before != nil {
		r.before()
	}
}

func (r replica) Load(context.Context) (*Identity, string, error) {
	r.wait()
	return r.world.load()
}

func (r replica) Save(_ context.Context, id *Identity, version string) error {
	r.wait()
	return r.world.save(id, version)
}

func (r replica) Look(context.Context) (Published, error) {
	r.wait()
	bundle, version, err := r.world.look()
	return Published{Nobody: r.world.nobody, Bundle: bundle, Replace: func(_ context.Context, bundle []byte) error {
		r.wait()
		return r.world.replace(bundle, version)
	}}, err
}

func (r replica) rotator() *Rotator {
	return &Rotator{Keeper: r, Audience: r, Policy: policy}
}

// check says what would cut somebody off.
func (w *world) check() error {
	id, _, err := w.load()
	if err != nil {
		return err
	}
	if !holds(w.bundle, id.Current.Certificate()) {
		return errors.New("clients do not trust the authority that signs")
	}
	for _, r := range id.Retired {
		if !holds(w.bundle, certificates(r.CertPEM)[0]) {
			return errors.New("clients do not trust an authority whose certificates are good")
		}
	}
	if id.Next != nil && !id.Confirmed.IsZero() && !holds(w.bundle, id.Next.Certificate()) {
		return errors.New("the next authority counts as trusted and is not")
	}
	return nil
}

// TestTwoRotators runs all orders in which the calls of two replicas can follow each other, where one takes a look while the other takes
// two, at each moment of a rotation. After each call nobody may be cut off, and in the end all is published.
func TestTwoRotators(t *testing.T) {
	now := time.Now()
	authorities := make([]*Identity, 3)
	for i := range authorities {
		authorities[i] = fresh(t, policy.Authority)
	}
	current, next, old := authorities[0].Current, authorities[1].Current, authorities[2].Current
	for name, moment := range map[string]struct {
		change func(*Identity)
		// unpublished means that the replica that made the last step died before it published.
		unpublished bool
	}{
		"one is asked for":       {change: func(id *Identity) { id.Requested = "now" }},
		"next is not published":  {change: func(id *Identity) { id.Next = next }, unpublished: true},
		"next is not confirmed":  {change: func(id *Identity) { id.Next = next }},
		"next waits":             {change: func(id *Identity) { id.Next, id.Confirmed = next, now }},
		"next is to be promoted": {change: func(id *Identity) { id.Next, id.Confirmed = next, now.Add(-policy.Overlap) }},
		"an old one is to go":    {change: func(id *Identity) { id.Retired = []Retired{{CertPEM: old.CertPEM, Until: now.Add(-time.Second)}} }},
		"an old one is to go and one is to come": {change: func(id *Identity) {
			id.Retired = []Retired{{CertPEM: old.CertPEM, Until: now.Add(-time.Second)}}
			id.Requested = "now"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			id := &Identity{Current: current, AttemptKey: authorities[0].AttemptKey}
			before := id.Trusted()
			moment.change(id)
			orders := 0
			for order := range schedules(4, 8) {
				w := newWorld(t, id)
				w.requested = id.Requested
				if moment.unpublished {
					w.bundle = before
				}
				run(t, w, order, 1, 2)
				orders++
				// One that is left finishes, whatever the other left undone.
				solo := replica{world: w}.rotator()
				for range 4 {
					if _, err := solo.Tick(t.Context()); err != nil {
						t.Fatalf("%v: %v", order, err)
					}
				}
				got, _, err := w.load()
				if err != nil || !sameBundle(w.bundle, got.Trusted()) {
					t.Fatalf("%v: what is trusted is not published: %v", order, err)
				}
				if name == "next waits" && !sameBundle(got.Current.CertPEM, current.CertPEM) {
					t.Fatalf("%v: the next authority did not wait", order)
				}
			}
			t.Logf("%d orders", orders)
		})
	}
}

// schedules yields all orders of a calls of replica 0 and b calls of replica 1.
func schedules(a, b int) func(func([]int) bool) {
	return func(yield func([]int) bool) {
		var grow func(order []int, a, b int) bool
		grow = func(order []int, a, b int) bool {
			if a == 0 && b == 0 {
				return yield(order)
			}
			if a > 0 && !grow(append(order[:len(order):len(order)], 0), a-1, b) {
				return false
			}
			return b == 0 || grow(append(order[:len(order):len(order)], 1), a, b-1)
		}
		grow(nil, a, b)
	}
}

// run lets two replicas look as often as is said, with their calls in an order. Who has nothing to call any more is passed over.
func run(t *testing.T, w *world, order []int, looks ...int) {
	t.Helper()
	type actor struct {
		asks, may chan struct{}
	}
	actors := make([]actor, len(looks))
	for i, n := range looks {
		a := actor{asks: make(chan struct{}), may: make(chan struct{})}
		actors[i] = a
		r := replica{world: w, before: func() { a.asks <- struct{}{}; <-a.may }}.rotator()
		go func() {
			defer close(a.asks)
			for range n {
				if _, err := r.Tick(t.Context()); err != nil && !errors.Is(err, ErrConflict) {
					t.Errorf("%v: %v", order, err)
				}
			}
		}()
	}
	alive := make([]bool, len(actors))
	for i := range actors {
		_, alive[i] = <-actors[i].asks
	}
	for _, i := range order {
		if !alive[i] {
			continue
		}
		actors[i].may <- struct{}{}
		_, alive[i] = <-actors[i].asks
		if err := w.check(); err != nil {
			t.Fatalf("%v: %v", order, err)
		}
	}
	for i := range actors {
		if alive[i] {
			t.Fatalf("%v: replica %d calls more often than was thought", order, i)
		}
	}
}

func TestRotatorKeepsWhatWasLost(t *testing.T) {
	known := fresh(t, policy.Authority)
	w := newWorld(t, known)
	w.kept = nil
	r := replica{world: w}.rotator()
	r.Known = func() *Identity { return known }
	if _, err := r.Tick(t.Context()); err != nil {
		t.Fatal(err)
	}
	if id, _, err := w.load(); err != nil || !same(id, known) {
		t.Errorf("got %+v, %v", id, err)
	}
}

// With nobody to publish to a rotation goes on.
func TestRotationForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, fresh(t, policy.Authority))
		w.nobody, w.requested = true, "now"
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = replica{world: w}.rotator().Run(ctx) }()
		time.Sleep(policy.Overlap + time.Hour)
		cancel()
		synctest.Wait()
		if id, _, err := w.load(); err != nil || id.Next != nil || len(id.Retired) != 1 || w.published != 1 {
			t.Errorf("got %+v, %v", id, err)
		}
	})
}

// TestYearsOfRotation has two replicas, both of which rotate, and somebody who looks at their certificates by what is
// published. For a while of each year one of them reads nothing. A year has a hundred minutes here.
func TestYearsOfRotation(t *testing.T) {
	policy := Policy{Authority: 100 * time.Minute, Serving: 12 * time.Minute, Overlap: 6 * time.Minute}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, fresh(t, policy.Authority))
		ctx, cancel := context.WithCancel(t.Context())
		lonely := &lonelyKeeper{Keeper: replica{world: w}}
		var followers []*Follower
		for _, keeper := range []Keeper{replica{world: w}, lonely} {
			f, err := Follow(ctx, FollowerConfig{Keeper: keeper, Policy: policy, Names: []string{"server.team.svc"}})
			if err != nil {
				t.Fatal(err)
			}
			followers = append(followers, f)
			go func() {
				for ctx.Err() == nil {
					if err := f.Sync(ctx); err != nil && !errors.Is(err, errAway) {
						t.Error(err)
					}
					time.Sleep(policy.Interval())
				}
			}()
			r := replica{world: w}.rotator()
			r.Policy = policy
			go func() { _ = r.Run(ctx) }()
		}
		authorities := map[string]bool{}
		start := time.Now()
		for time.Since(start) < 12*policy.Authority {
			time.Sleep(11 * time.Second)
			since := time.Since(start) % policy.Authority
			// For less than a third of the life of a certificate, since it is renewed after two.
			lonely.set(since < policy.Serving/4)
			for i, f := range followers {
				if err := trusted(f, w); err != nil {
					t.Fatalf("replica %d after %v: %v", i, time.Since(start), err)
				}
			}
			authorities[followers[0].Identity().Current.Certificate().Subject.CommonName] = true
			if n := len(certificates(w.bundle)); n > 3 {
				t.Fatalf("%d authorities are trusted", n)
			}
		}
		if len(authorities) < 12 {
			t.Errorf("there were %d authorities", len(authorities))
		}
		cancel()
		time.Sleep(time.Minute)
		synctest.Wait()
	})
}

func trusted(f *Follower, w *world) error {
	pool := x509.NewCertPool()
	bundle, _, err := w.look()
	if err != nil {
		return err
	}
	pool.AppendCertsFromPEM(bundle)
	certPEM, _ := f.CurrentCertKeyContent()
	leaf := certificates(certPEM)
	if len(leaf) != 1 {
		return fmt.Errorf("%d certificates are served", len(leaf))
	}
	_, err = leaf[0].Verify(x509.VerifyOptions{Roots: pool, DNSName: "server.team.svc"})
	return err
}

var errAway = errors.New("away")

// lonelyKeeper cannot be read at times.
type lonelyKeeper struct {
	Keeper
	mu   sync.Mutex
	away bool
}

func (k *lonelyKeeper) set(away bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.away = away
}

func (k *lonelyKeeper) Load(ctx context.Context) (*Identity, string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.away {
		return nil, "", errAway
	}
	return k.Keeper.Load(ctx)
}
