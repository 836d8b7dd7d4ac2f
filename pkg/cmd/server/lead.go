// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"rukpak.io/apiserver/pkg/leader"
)

// runLeader does what one replica alone has to do, while this one leads. Without a cluster there is no other.
func (p *process) runLeader(ctx context.Context) error {
	if p.kube == nil {
		return p.lead(ctx)
	}
	return leader.Run(ctx, leader.Config{Kube: p.kube, Namespace: p.Namespace, Identity: podIdentity()}, p.lead)
}

// lead works until ctx ends. When one of its tasks fails the others end too, so that another replica can take over all of them.
func (p *process) lead(ctx context.Context) error {
	defer p.beginLeading()()
	group, ctx := errgroup.WithContext(ctx)
	do := func(name string, task func(context.Context) error) {
		group.Go(func() error {
			if err := task(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	do("unpack", p.whenWhole(p.runUnpack))
	do("check content", p.checkContent)
	do("watch room", p.watchRoom)
	do("rotate the authority", p.certificates.rotate)
	if p.certificates.claims != nil {
		do("look for claims of others", p.certificates.claims.Run)
	}
	do("sweep content", p.sweepStores)
	do("expire uploads", p.whenWhole(p.server.Uploads.RunExpiry))
	for _, c := range p.collectors {
		do("collect content", func(ctx context.Context) error { return c.Run(ctx, p.Collect.Interval) })
	}
	for name := range p.stores {
		do("scrub content", p.whenWhole(p.scrubber(name)))
	}
	return group.Wait()
}
