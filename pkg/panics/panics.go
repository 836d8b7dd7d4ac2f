// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package panics keeps a panic over one piece of work from ending the process. The generic server does so for what a
// request does itself, and nobody for a goroutine that it begins.
package panics

import (
	"context"
	"runtime/debug"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
)

var caught = metrics.NewCounter(&metrics.CounterOpts{
	Name: "rukpak_content_panics_total", Help: "Panics over content, on its way or stored, that were caught.", StabilityLevel: metrics.ALPHA,
})

func init() {
	legacyregistry.MustRegister(caught)
}

// Error is the error of work that panicked. What it panicked with is in the log alone.
type Error struct {
	// Over is what was worked on, for people.
	Over string
}

func (e *Error) Error() string { return "the server failed over " + e.Over + "; its log says more" }

// Catch does some work, and returns its error. A panic is logged with its stack, counted, and returned as an *Error.
func Catch(ctx context.Context, over string, work func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			caught.Inc()
			err = &Error{over}
			klog.FromContext(ctx).Error(err, "Panic over "+over, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	return work()
}
