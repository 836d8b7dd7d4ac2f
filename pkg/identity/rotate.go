// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"
)

// tickTimeout bounds one look of a Rotator, writes included.
const tickTimeout = 20 * time.Second

// Audience is who trusts the server by a bundle of authorities that is published to it.
type Audience interface {
	// Look returns what is published now.
	Look(ctx context.Context) (Published, error)
}

// Published is what an Audience trusts.
type Published struct {
	// Nobody means that there is no one to publish to.
	Nobody bool
	// Bundle is the authorities that are trusted, PEM.
	Bundle []byte
	// Replace publishes another bundle. It fails with ErrConflict if somebody else has published since the look.
	Replace func(ctx context.Context, bundle []byte) error
}

// Ensure publishes a bundle if other authorities are published, and reports whether it did.
func (p Published) Ensure(ctx context.Context, bundle []byte) (bool, error) {
	if p.Nobody || sameBundle(p.Bundle, bundle) {
		return false, nil
	}
	if err := p.Replace(ctx, bundle); err != nil {
		return false, fmt.Errorf("publish the authorities by which the server is to be trusted: %w", err)
	}
	klog.FromContext(ctx).Info("Published the authorities by which the server is to be trusted", "count", len(certificates(bundle)))
	return true, nil
}

// Rotator replaces authorities in time, and keeps what is published right.
type Rotator struct {
	Keeper   Keeper
	Audience Audience
	Policy   Policy
	// Known is the identity as this replica knows it. It is kept again if what is kept gets lost.
	Known func() *Identity
}

// Run rotates until ctx ends.
func (r *Rotator) Run(ctx context.Context) error {
	log := klog.FromContext(ctx)
	for {
		pause := r.Policy.Interval()
		again, err := r.Tick(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrConflict):
			log.V(2).Info("Another replica works on the server's own authority", "err", err)
		case err != nil:
			log.Error(err, "Cannot keep the server's own authority right")
		case again:
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// Tick takes at most one step, and publishes what is to be trusted if that is something else than what is published. It
// reports whether there may be more to do at once.
//
// What is published is read before what is kept. So whoever publishes an old state, because it was slow, has read what
// was published before that state was replaced, and fails.
func (r *Rotator) Tick(ctx context.Context) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, tickTimeout)
	defer cancel()
	published, err := r.Audience.Look(ctx)
	if err != nil {
		return false, fmt.Errorf("look at what clients trust: %w", err)
	}
	id, version, err := r.Keeper.Load(ctx)
	if errors.Is(err, ErrNotFound) {
		return r.restore(ctx)
	}
	if err != nil {
		return false, fmt.Errorf("read the server's own authority: %w", err)
	}
	step, err := id.Advance(time.Now(), r.Policy, func(c *x509.Certificate) bool {
		return published.Nobody || holds(published.Bundle, c)
	})
	if err != nil {
		return false, err
	}
	if step != StepNone {
		if err := r.Keeper.Save(ctx, id, version); err != nil {
			return false, fmt.Errorf("keep the server's own authority: %w", err)
		}
		klog.FromContext(ctx).Info("Rotating the server's own authority: "+string(step),
			"current", id.Current.Certificate().Subject.CommonName, "end", id.Current.Certificate().NotAfter)
	}
	replaced, err := published.Ensure(ctx, id.Trusted())
	return replaced || step != StepNone, err
}

// restore keeps what this replica knows. A new authority in place of one that was lost would cut off everybody.
func (r *Rotator) restore(ctx context.Context) (bool, error) {
	if err := r.Keeper.Save(ctx, r.Known(), ""); err != nil {
		return false, fmt.Errorf("keep the server's own authority again, which was lost: %w", err)
	}
	klog.FromContext(ctx).Info("What was kept of the server's own authority was lost: it is kept again")
	return true, nil
}
