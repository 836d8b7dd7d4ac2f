// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordination "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	clienttesting "k8s.io/client-go/testing"
)

// One of two leads; when it ends, it has finished its work before the other begins.
func TestOneLeadsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		leading := make(chan string, 10)
		start := func(identity string) (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				done <- Run(ctx, Config{kube, "rukpak-system", identity}, func(ctx context.Context) error {
					leading <- identity
					<-ctx.Done()
					time.Sleep(3 * time.Second) // what has to be finished; the clock is synctest's
					leading <- identity + " ends"
					return nil
				})
			}()
			return func() {
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		}
		stopFirst := start("a")
		time.Sleep(time.Second)
		stopSecond := start("b")
		time.Sleep(time.Minute)
		stopFirst()
		time.Sleep(time.Minute)
		stopSecond()
		close(leading)
		var got []string
		for who := range leading {
			got = append(got, who)
		}
		want := []string{"a", "a ends", "b", "b ends"}
		if len(got) != len(want) {
			t.Fatalf("got %q, want %q", got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("got %q, want %q", got, want)
			}
		}
	})
}

// A Lease that cannot be renewed ends the work; it is taken up again as soon as the Lease is back.
func TestLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		away := false
		kube.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return away, nil, errors.New("the API is away")
		})
		ctx, cancel := context.WithCancel(t.Context())
		begun, ended := 0, 0
		done := make(chan error, 1)
		go func() {
			done <- Run(ctx, Config{kube, "rukpak-system", "a"}, func(ctx context.Context) error {
				begun++
				<-ctx.Done()
				ended++
				return nil
			})
		}()
		time.Sleep(time.Minute)
		away = true
		time.Sleep(time.Minute)
		if begun != 1 || ended != 1 {
			t.Errorf("begun %d and ended %d times, while the lease cannot be renewed", begun, ended)
		}
		away = false
		time.Sleep(time.Minute)
		if begun != 2 || ended != 1 {
			t.Errorf("begun %d and ended %d times after the API came back", begun, ended)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		held, err := kube.CoordinationV1().Leases("rukpak-system").Get(t.Context(), LeaseName, metav1.GetOptions{})
		if err != nil || held.Spec.HolderIdentity != nil && *held.Spec.HolderIdentity != "" {
			t.Errorf("lease %+v, %v is not given back", held, err)
		}
	})
}

// flakyKube is a client whose requests for Leases are answered, fail or hang.
type flakyKube struct {
	kubernetes.Interface
	state func() string
}

func (f flakyKube) CoordinationV1() coordinationv1.CoordinationV1Interface {
	return flakyCoordination{f.Interface.CoordinationV1(), f.state}
}

type flakyCoordination struct {
	coordinationv1.CoordinationV1Interface
	state func() string
}

func (f flakyCoordination) Leases(namespace string) coordinationv1.LeaseInterface {
	return flakyLeases{f.CoordinationV1Interface.Leases(namespace), f.state}
}

type flakyLeases struct {
	coordinationv1.LeaseInterface
	state func() string
}

func (f flakyLeases) check(ctx context.Context) error {
	switch f.state() {
	case "hangs":
		<-ctx.Done()
		return ctx.Err()
	case "fails":
		return errors.New("the API is away")
	}
	return nil
}

func (f flakyLeases) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordination.Lease, error) {
	if err := f.check(ctx); err != nil {
		return nil, err
	}
	return f.LeaseInterface.Get(ctx, name, o)
}

func (f flakyLeases) Update(ctx context.Context, lease *coordination.Lease, o metav1.UpdateOptions) (*coordination.Lease, error) {
	if err := f.check(ctx); err != nil {
		return nil, err
	}
	return f.LeaseInterface.Update(ctx, lease, o)
}

// Whoever cannot renew the Lease has ended its work before another begins.
func TestOneLeadsAfterTheOther(t *testing.T) {
	for name, outage := range map[string]struct {
		state string
		lasts time.Duration
	}{
		"the API hangs":                     {"hangs", time.Hour},
		"the API fails":                     {"fails", time.Hour},
		"it comes back just when that ends": {"fails", renewDeadline + retryPeriod},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kube := fake.NewClientset()
				from := time.Now().Add(time.Minute)
				flaky := flakyKube{kube, func() string {
					if since := time.Since(from); since < 0 || since >= outage.lasts {
						return ""
					}
					return outage.state
				}}
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				var mu sync.Mutex
				var at []string
				note := func(what string) {
					mu.Lock()
					defer mu.Unlock()
					at = append(at, what)
				}
				for identity, client := range map[string]kubernetes.Interface{"a": flaky, "b": kube} {
					all.Go(func() {
						if identity == "b" {
							time.Sleep(time.Second) // the clock is synctest's
						}
						err := Run(ctx, Config{client, "rukpak-system", identity}, func(ctx context.Context) error {
							note(identity + " begins")
							<-ctx.Done()
							time.Sleep(2 * time.Second) // what has to be finished
							note(identity + " ends")
							return nil
						})
						if err != nil {
							t.Error(err)
						}
					})
				}
				time.Sleep(2 * time.Minute)
				cancel()
				all.Wait()
				if outage.lasts == time.Hour && !slices.Contains(at, "b begins") {
					t.Error("nobody else leads")
				}
				for i := 0; i < len(at); i += 2 {
					if who, begins := strings.CutSuffix(at[i], " begins"); !begins || i+1 == len(at) || at[i+1] != who+" ends" {
						t.Fatalf("got %q", at)
					}
				}
			})
		})
	}
}

// Work that fails is begun again.
func TestWorkFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		begun, start := 0, time.Now()
		err := Run(ctx, Config{fake.NewClientset(), "rukpak-system", "a"}, func(context.Context) error {
			if begun++; begun == 3 {
				cancel()
			}
			return errors.New("broken")
		})
		if err != nil || begun != 3 {
			t.Errorf("%v after %d times", err, begun)
		}
		if took := time.Since(start); took < 2*retryPeriod {
			t.Errorf("begun three times within %v", took)
		}
	})
}

func TestConfig(t *testing.T) {
	for name, c := range map[string]Config{
		"no client":    {nil, "n", "i"},
		"no namespace": {fake.NewClientset(), "", "i"},
		"no identity":  {fake.NewClientset(), "n", ""},
	} {
		if err := Run(t.Context(), c, func(context.Context) error { return nil }); err == nil {
			t.Error(name + ": no error")
		}
	}
}
