// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package leader lets one process of several do what must be done by one alone.
//
// Whoever holds the Lease leads. That is no lock: for a moment two processes can
// believe that they lead, when one was stopped for long, so what leaders do must
// bear that. Nothing that serves requests may depend on it.
package leader

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// LeaseName is the name of the Lease.
const LeaseName = "rukpak-apiserver"

// Times of the Lease. A leader that dies is replaced after leaseDuration, one that ends is at once. One that cannot renew it
// is told to end retryPeriod and renewDeadline after it last could: what remains of leaseDuration is for ending.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
	// returnTime is how long it is tried to give the Lease back.
	returnTime = 5 * time.Second
)

// Config says where the Lease is and who wants it. All of it is required.
type Config struct {
	Kube      kubernetes.Interface
	Namespace string
	// Identity names this process. One that outlives a restart gets its own Lease back
	// without waiting; two processes must never have the same.
	Identity string
}

// Run calls lead whenever this process holds the Lease, with a context that is done when it
// holds it no more, until ctx ends. The Lease is given back only when lead has returned.
// Its error is logged, and it is called again after a pause, here or by another process.
func Run(ctx context.Context, config Config, lead func(context.Context) error) error {
	if config.Kube == nil || config.Namespace == "" || config.Identity == "" {
		return errors.New("leader election: a client, a namespace and an identity are required")
	}
	for ctx.Err() == nil {
		if err := campaign(ctx, config, lead); err != nil {
			return err
		}
		// Others come first after a failure here, and nobody spins.
		select {
		case <-ctx.Done():
		case <-time.After(retryPeriod):
		}
	}
	return nil
}

// campaign waits for the Lease and leads until it is lost or ctx ends.
func campaign(ctx context.Context, config Config, lead func(context.Context) error) error {
	holding, letGo := context.WithCancel(context.WithoutCancel(ctx))
	defer letGo()
	var (
		mu            sync.Mutex
		started, over bool
		working       sync.WaitGroup
	)
	onStart := func(leading context.Context) {
		mu.Lock()
		if over {
			mu.Unlock()
			return
		}
		started = true
		working.Add(1)
		mu.Unlock()
		defer working.Done()
		defer letGo()
		work, stop := context.WithCancel(ctx)
		defer stop()
		defer context.AfterFunc(leading, stop)()
		if err := lead(work); err != nil {
			klog.FromContext(ctx).Error(err, "What the leader does ended")
		}
	}
	// Whoever waits for the Lease has nothing to finish.
	defer context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		if !started {
			letGo()
		}
	})()
	lock := lease(config)
	// ReleaseOnCancel is not for this: of a Lease that cannot be renewed it would give back what is still worked under,
	// and keep the work going for as long as that takes.
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          lock,
		LeaseDuration: leaseDuration,
		RenewDeadline: renewDeadline,
		RetryPeriod:   retryPeriod,
		Name:          LeaseName,
		Callbacks:     leaderelection.LeaderCallbacks{OnStartedLeading: onStart, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	elector.Run(holding)
	mu.Lock()
	over = true
	mu.Unlock()
	working.Wait()
	if !elector.IsLeader() {
		return nil
	}
	if err := giveBack(context.WithoutCancel(ctx), lock); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot give the Lease back: others wait until it is over")
	}
	return nil
}

// giveBack lets others lead at once, if nobody does.
func giveBack(ctx context.Context, lock resourcelock.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, returnTime)
	defer cancel()
	held, _, err := lock.Get(ctx)
	if err != nil || held.HolderIdentity != lock.Identity() {
		return err
	}
	now := metav1.Now()
	// A Lease has a duration; one without a holder does not wait for it.
	return lock.Update(ctx, resourcelock.LeaderElectionRecord{LeaderTransitions: held.LeaderTransitions, LeaseDurationSeconds: 1, AcquireTime: now, RenewTime: now})
}

func lease(config Config) resourcelock.Interface {
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: config.Namespace, Name: LeaseName},
		Client:     config.Kube.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: config.Identity},
	}
}
