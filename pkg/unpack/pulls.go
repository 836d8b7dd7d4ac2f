// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"

	"rukpak.io/apiserver/pkg/unpack/pod"
)

// PullRate is how many images a kubelet pulls (KubeletConfiguration, registryBurst and registryPullQPS).
type PullRate struct {
	// Burst is how many it pulls in a row. No pod has more.
	Burst int
	// PerSecond is how many it pulls in a second after that. 0 means any number.
	PerSecond int
}

// pulls puts off pods whose images their node would refuse to pull for now: it tries such a pod again after ten seconds or more, with all its
// images, which then are too many for others. Which node a pod comes to is not known before, and neither is how many nodes there are; so it is
// assumed that there are those that have unpack pods now. Of what they pull a half in a row, and a fifth of the others, is left over. A node that is
// busy starts many pods at once that were made one after the other, so those that have not started count, too, for a while: images can be
// slow, and there can be no node.
type pulls struct {
	PullRate
	// load tells how many nodes have unpack pods, and how many images those pods have that were made lately and have not started.
	load func(now time.Time) (nodes, unstarted int)

	mu      sync.Mutex
	limiter *rate.Limiter
	spent   time.Time // that a node has refused images
}

const (
	// startTime is how long a pod counts that has not started.
	startTime = 5 * time.Second
	// lookAgain is how long to wait for such pods.
	lookAgain = 200 * time.Millisecond
)

func newPulls(r PullRate, load func(time.Time) (nodes, unstarted int)) *pulls {
	return &pulls{PullRate: r, load: load, limiter: rate.NewLimiter(0, (r.Burst+1)/2)}
}

// wait returns how long so many images have yet to wait. If not at all they count from now on.
func (p *pulls) wait(images int, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	nodes, unstarted := p.follow(now)
	if unstarted > 0 && unstarted+images > p.Burst*nodes {
		return lookAgain
	}
	booked := p.limiter.ReserveN(now, min(images, p.limiter.Burst()))
	left := booked.DelayFrom(now)
	if left > 0 {
		booked.CancelAt(now)
	}
	return left
}

// follow adapts the pace to the nodes there are.
func (p *pulls) follow(now time.Time) (nodes, unstarted int) {
	nodes, unstarted = p.load(now)
	nodes = max(nodes, 1)
	p.limiter.SetLimitAt(now, rate.Limit(float64(p.PerSecond*nodes)*0.8))
	p.limiter.SetBurstAt(now, (p.Burst+1)/2*nodes)
	return nodes, unstarted
}

// refused says that a node has not pulled images since they were too many: it will try, and so do others.
func (p *pulls) refused(now time.Time) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.spent) < time.Second {
		return
	}
	p.spent = now
	p.follow(now)
	p.limiter.ReserveN(now, p.limiter.Burst())
}

// pullLoad is the load of the pods that there are.
func (t *term) pullLoad(now time.Time) (nodes, unstarted int) {
	names := map[string]bool{}
	for _, obj := range t.pods.List() {
		p, ok := obj.(*corev1.Pod)
		if !ok {
			continue
		}
		if p.Spec.NodeName != "" {
			names[p.Spec.NodeName] = true
		}
		// By another clock, which may be wrong in either direction.
		if age := now.Sub(p.CreationTimestamp.Time); p.Status.Phase == corev1.PodPending && age.Abs() < startTime {
			unstarted += pod.Images(p)
		}
	}
	return len(names), unstarted
}
