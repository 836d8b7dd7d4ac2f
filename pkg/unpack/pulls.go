// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
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
	latest  time.Time               // that was seen, since the limiter would give the time between two again
	held    time.Time               // since when pods that have not started are waited for; zero if they are not
	spent   map[types.UID]time.Time // when a node refused the images of a pod
}

const (
	// startTime is how long a pod counts that has not started, and how long such pods are waited for.
	startTime = 5 * time.Second
	// lookAgain is how long to wait for them at a time.
	lookAgain = 200 * time.Millisecond
	// retryTime is how long a kubelet waits at least before it tries a pod again.
	retryTime = 10 * time.Second
)

func newPulls(r PullRate, load func(time.Time) (nodes, unstarted int)) *pulls {
	return &pulls{PullRate: r, load: load, limiter: rate.NewLimiter(0, (r.Burst+1)/2), spent: map[types.UID]time.Time{}}
}

// wait returns how long so many images have yet to wait. If not at all they count from now on.
func (p *pulls) wait(images int, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, nodes, unstarted := p.follow(now)
	if unstarted > 0 && unstarted+images > p.Burst*nodes && p.hold(now) {
		return lookAgain
	}
	booked := p.limiter.ReserveN(now, min(images, p.limiter.Burst()))
	left := booked.DelayFrom(now)
	if left > 0 {
		booked.CancelAt(now)
		return left
	}
	p.held = time.Time{}
	return 0
}

// hold reports whether to wait for pods that have not started.
func (p *pulls) hold(now time.Time) bool {
	if p.held.IsZero() {
		p.held = now
	}
	return now.Sub(p.held) < startTime
}

// follow adapts the pace to the nodes there are, and returns the time to go by.
func (p *pulls) follow(at time.Time) (now time.Time, nodes, unstarted int) {
	if at.After(p.latest) {
		p.latest = at
	}
	now = p.latest
	nodes, unstarted = p.load(now)
	nodes = max(nodes, 1)
	p.limiter.SetLimitAt(now, rate.Limit(float64(p.PerSecond*nodes)*0.8))
	p.limiter.SetBurstAt(now, (p.Burst+1)/2*nodes)
	return now, nodes, unstarted
}

// refused says that the node of a pod has not pulled its images since they were too many. It is busy with what others have it pull, and will be
// with this pod: so what it would pull in a row is over, once for each time that it tries.
func (p *pulls) refused(uid types.UID, now time.Time) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now, _, _ = p.follow(now)
	maps.DeleteFunc(p.spent, func(_ types.UID, at time.Time) bool { return now.Sub(at) >= retryTime })
	if _, known := p.spent[uid]; known {
		return
	}
	p.spent[uid] = now
	// Nothing is owed: else pods that are refused again and again would stop all others.
	if left := min(int(p.limiter.TokensAt(now)), (p.Burst+1)/2); left > 0 {
		p.limiter.ReserveN(now, left)
	}
}

// pullLoad is the load of our pods.
func (t *term) pullLoad(now time.Time) (nodes, unstarted int) {
	names := map[string]bool{}
	for _, p := range t.ownPods.all() {
		if p.Spec.NodeName != "" {
			names[p.Spec.NodeName] = true
		}
		// By another clock, which may be wrong in either direction.
		if age := now.Sub(p.CreationTimestamp.Time); p.Status.Phase == corev1.PodPending && !pod.IsLook(p) && age.Abs() < startTime && pod.Judge(p).Reason != v1alpha1.ReasonUnschedulable {
			unstarted += pod.Images(p)
		}
	}
	return len(names), unstarted
}
