// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/watch"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

const (
	// defaultWait is how long is waited unless it is said. Classes let an attempt take as long by default.
	defaultWait = 10 * time.Minute
	// watchPause is the time between two requests where the first did not help.
	watchPause = time.Second
	// unreachable is how long the server may be away before waiting ends.
	unreachable = 2 * time.Minute
)

// wait waits until content is there.
func (s *session) wait() *cobra.Command {
	var w waiting
	cmd := &cobra.Command{
		Use:   "wait NAME",
		Short: "Wait until the content is there, and show how it goes",
		Long: `Wait until the content of the bundle's spec is served, and show each stage.

It ends with 0 then; with 1 and what to do about it when attempts have failed too often or cannot succeed, when two in a row were seen to
fail for the same thing that does not go away by itself (an image that is not there, credentials that are not taken), and when for 10 s the
class does not exist, the bundle is suspended, or an attempt waits for such a thing; and with 8 when the time is over. With --patient
attempts are waited for as long as they go on, as where somebody else pushes the image later.`,
		Example: `  kubectl bundle wait app

  # In a script
  kubectl bundle wait app --timeout 2m && kubectl bundle pull app

  # Until somebody has pushed the image
  kubectl bundle wait app --patient --timeout 1h`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: s.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			bundles, name, err := s.named(args[0])
			if err != nil {
				return err
			}
			return s.waitReady(cmd.Context(), bundles, name, w)
		},
	}
	w.flags(cmd)
	return cmd
}

// waiting is how long something is waited for.
type waiting struct {
	timeout time.Duration // 0 is for ever
	patient bool
	// begun, if set, reports whether what is waited for has begun: what a bundle says before is of what was, and not shown.
	begun func(*v1alpha1.Bundle) bool
}

func (w *waiting) flags(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&w.timeout, "timeout", defaultWait, "How long to wait. 0 is for ever.")
	cmd.Flags().BoolVar(&w.patient, "patient", false, "Wait on where the cause does not go away by itself, as for an image that is not there yet.")
}

// errTimeout ends a wait.
var errTimeout = errors.New("the time is over")

// waitReady waits until a bundle is ready, and fails when it does.
func (s *session) waitReady(ctx context.Context, bundles typed.BundleInterface, name string, w waiting) error {
	return s.waitUntil(ctx, bundles, name, w, s.ready(w))
}

// ready returns what looks whether a bundle is ready, and fails when it does.
func (s *session) ready(w waiting) func(*v1alpha1.Bundle) (bool, error) {
	lasting := &lasting{}
	return func(b *v1alpha1.Bundle) (bool, error) {
		st := s.stateOf(b)
		switch {
		case st.isReady():
			return true, nil
		case st.failing():
			return false, &vain{st.next()}
		case !w.patient && lasting.see(st, time.Now()):
			return false, &vain{st.mend()}
		}
		return false, nil
	}
}

// vain is the error of waiting for what will not come, with what to do about it.
type vain struct{ todo []string }

func (*vain) Error() string { return "it is waited for in vain" }

// givesUp says what to do about what is waited for in vain, below its last stage, and that the answer is no.
func (s *session) givesUp(err error) error {
	v, ok := errors.AsType[*vain](err)
	if !ok {
		return err
	}
	for _, line := range v.todo {
		s.say("  %s", line)
	}
	return errNo
}

// waitUntil follows a bundle and shows its stages until done says so or fails.
func (s *session) waitUntil(ctx context.Context, bundles typed.BundleInterface, name string, w waiting, done func(*v1alpha1.Bundle) (bool, error)) error {
	outer := ctx
	if w.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, w.timeout, errTimeout)
		defer cancel()
	}
	f := &follower{bundles: bundles, name: name, stages: s.stages(name, w.timeout)}
	f.retrying = func(r typed.Retry) error {
		return f.stages.aside(func() error { return s.retrying(r) })
	}
	defer f.stages.end()
	for b, err := range f.follow(ctx) {
		if err != nil {
			if outer.Err() == nil && errors.Is(context.Cause(ctx), errTimeout) {
				return s.late(name, w.timeout, f.last)
			}
			return err
		}
		if w.begun == nil || w.begun(b) {
			f.stages.show(stateOf(b).stage())
		}
		if ok, err := done(b); ok || err != nil {
			f.stages.end()
			return s.givesUp(err)
		}
		f.stages.waits()
		f.again = time.After(settled)
	}
	return nil
}

func (s *session) late(name string, timeout time.Duration, last *v1alpha1.Bundle) error {
	err := fmt.Errorf("bundle %q is not ready after %s", name, duration.HumanDuration(timeout))
	if last != nil {
		err = fmt.Errorf("%w: %s", err, stateOf(last).stage())
	}
	return fail(ExitUnavailable, err, "\"%s describe %s%s\" says more; --timeout waits longer", program, name, s.where(""))
}

// follower follows one bundle.
type follower struct {
	bundles typed.BundleInterface
	name    string
	stages  *stages
	last    *v1alpha1.Bundle
	// again is when the bundle is looked at once more although it has not changed.
	again <-chan time.Time
	// retrying is told of each failure after which it is tried again, and ends that with an error.
	retrying func(typed.Retry) error
}

// follow yields a bundle whenever it has changed, until ctx ends. A server that is away for a while is waited for.
func (f *follower) follow(ctx context.Context) func(func(*v1alpha1.Bundle, error) bool) {
	return func(yield func(*v1alpha1.Bundle, error) bool) {
		for failing, since := false, time.Now(); ; {
			heard := false
			if !failing {
				since = time.Now()
			}
			err := f.round(ctx, func(b *v1alpha1.Bundle) bool {
				heard, f.last = true, b
				return yield(b, nil)
			})
			if heard {
				since = time.Now()
			}
			failing = err != nil
			switch {
			case errors.Is(err, errStopped):
				return
			case ctx.Err() != nil:
				yield(nil, context.Cause(ctx))
				return
			case err == nil:
			case f.last == nil || time.Since(since) > unreachable || !passes(err):
				yield(nil, err)
				return
			default:
				if err := f.bridge(ctx, err, since); err != nil {
					yield(nil, err)
					return
				}
			}
			select {
			case <-time.After(watchPause):
			case <-ctx.Done():
			}
		}
	}
}

// bridge tells that a failure is tried again, if that has been so for longer than a moment.
func (f *follower) bridge(ctx context.Context, cause error, since time.Time) error {
	now, until := time.Now(), since.Add(unreachable)
	if now.Sub(since) < hiccup {
		return nil
	}
	if end, ok := ctx.Deadline(); ok && end.Before(until) {
		until = end
	}
	return f.retrying(typed.Retry{Err: cause, Since: since, Next: now.Add(watchPause), Until: until})
}

// errStopped means that nobody wants to follow any more.
var errStopped = errors.New("stopped")

// passes reports whether the same request may succeed in a while.
func passes(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return !typed.IsLasting(err) // no answer at all
	}
	code := status.Status().Code
	return code == 429 || code >= 500 || apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// round gets the bundle, and watches it from there on.
func (f *follower) round(ctx context.Context, yield func(*v1alpha1.Bundle) bool) error {
	b, err := f.bundles.Get(ctx, f.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if !yield(b) {
		return errStopped
	}
	w, err := f.bundles.Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", f.name).String(), ResourceVersion: b.ResourceVersion,
	})
	if apierrors.IsForbidden(err) {
		return nil // Who may only get looks again and again.
	}
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case event, ok := <-w.ResultChan():
			if !ok {
				return nil
			}
			if err := f.see(event, yield); err != nil {
				return err
			}
		case <-f.again:
			if !yield(f.last) {
				return errStopped
			}
		}
	}
}

// see is told of a change.
func (f *follower) see(event watch.Event, yield func(*v1alpha1.Bundle) bool) error {
	switch event.Type {
	case watch.Added, watch.Modified:
		b, ok := event.Object.(*v1alpha1.Bundle)
		if ok && !yield(b) {
			return errStopped
		}
	case watch.Deleted:
		return apierrors.NewNotFound(v1alpha1.SchemeGroupVersion.WithResource("bundles").GroupResource(), f.name)
	case watch.Error:
		return apierrors.FromObject(event.Object)
	}
	return nil
}
