// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"slices"
)

// Inspect looks whether all fits together, and writes nothing: it is for whoever wants to delete content and is no server. Its error is a
// *Disagreement, an *Unverified if anything cannot be read, or ErrHold while nothing is deleted because a loss was accepted lately.
func (g *Guard) Inspect(ctx context.Context) error {
	var before []Finding
	for range turns {
		v, err := g.look(ctx)
		if err != nil {
			return &Unverified{Err: err}
		}
		found := v.judge()
		if len(found) > 0 {
			// A server may have been writing the marks meanwhile.
			if slices.Equal(found, before) {
				return &Disagreement{Findings: found, Token: token(found), Since: g.cfg.Now()}
			}
			before = found
			continue
		}
		if err := v.unread(func(*place) bool { return true }); err != nil {
			return &Unverified{Err: err}
		}
		if v.record == nil {
			return nil
		}
		return v.record.hold(g.cfg.Now())
	}
	return &Unverified{Err: errors.New("it changes all the time")}
}
