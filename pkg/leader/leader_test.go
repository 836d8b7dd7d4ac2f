// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
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
