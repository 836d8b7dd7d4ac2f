// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"context"
	"fmt"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// readerLimits bound the reads that run at the same time. Flow control does not: a read is long-running, and holds
// no seat. Administrators (system:masters) and the server itself are counted, and not held up, as in flow control.
type readerLimits struct {
	most, perUser int // 0 means any number

	mu     sync.Mutex
	now    int
	byUser map[string]int
	// ended is done when reads have to end because the server does.
	ended context.Context
	end   context.CancelCauseFunc
}

func newReaderLimits(most, perUser int) *readerLimits {
	l := &readerLimits{most: most, perUser: perUser, byUser: map[string]int{}}
	l.ended, l.end = context.WithCancelCause(context.Background())
	return l
}

// enter counts a read in, or refuses it. The context that it returns ends with ctx and with the server; leave is
// called when the read is over.
func (l *readerLimits) enter(ctx context.Context) (reading context.Context, leave func(), err error) {
	name, free := "", false
	if u, ok := genericapirequest.UserFrom(ctx); ok {
		name, free = u.GetName(), slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ended.Err() != nil:
		err := apierrors.NewServiceUnavailable(errEnded.Error())
		err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
		return nil, nil, err
	case free:
	case l.most > 0 && l.now >= l.most:
		readersRefused.WithLabelValues("server").Inc()
		return nil, nil, apierrors.NewTooManyRequests(fmt.Sprintf("%d reads of content are under way, as many as the server takes at the same time", l.now), busyRetrySeconds)
	case l.perUser > 0 && l.byUser[name] >= l.perUser:
		readersRefused.WithLabelValues("user").Inc()
		return nil, nil, apierrors.NewTooManyRequests(fmt.Sprintf("%d reads of content by %q are under way, as many as the server takes of one user at the same time", l.byUser[name], name), busyRetrySeconds)
	}
	l.now++
	l.byUser[name]++
	readers.Set(float64(l.now))
	reading, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.ended, func() { cancel(context.Cause(l.ended)) })
	return reading, func() {
		stop()
		cancel(nil)
		l.leave(name)
	}, nil
}

func (l *readerLimits) leave(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now--
	readers.Set(float64(l.now))
	if l.byUser[name]--; l.byUser[name] == 0 {
		delete(l.byUser, name)
	}
}

// EndReads cuts off all reads that are under way, and those that come. A client goes on from where it was, at another
// server or at the next one.
func (r *REST) EndReads() { r.readers.end(errEnded) }
