// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"rukpak.io/apiserver/pkg/content"
)

// Progress is how far a Scrubber is. It outlives the process that scrubs.
type Progress struct {
	// Started is when the pass began; zero if there was none yet.
	Started time.Time `json:"started,omitzero"`
	// Position is the digest that was read last. Passes go in the order of digests.
	Position string `json:"position,omitempty"`
	// Completed is when the last pass that reached the end did so.
	Completed time.Time `json:"completed,omitzero"`
	// Blobs, Bytes, Damaged and Failures count what the pass has met.
	Blobs    int   `json:"blobs"`
	Bytes    int64 `json:"bytes"`
	Damaged  int   `json:"damaged"`
	Failures int   `json:"failures"`
}

// running reports whether a pass has begun that has not reached its end.
func (p *Progress) running() bool { return p.Started.After(p.Completed) }

// Scrubber reads every blob of a store once an interval.
type Scrubber struct {
	Store Store
	// Interval is the time from the beginning of a pass to that of the next. A pass that takes longer is
	// followed by the next at once.
	Interval time.Duration
	// Pace bounds the reading.
	Pace *Pace
	// Load and Save keep the progress. What Save did not keep is done again.
	Load func(context.Context) (Progress, error)
	Save func(context.Context, Progress) error
	// Damaged is called with each digest whose bytes do not have it, and mends that. It looks again itself.
	Damaged func(ctx context.Context, digest string) error
	// Observe is called after each blob, and with an empty digest at the end of a pass. err is nil for a blob
	// that is whole, ErrDamaged or what kept it from being read.
	Observe func(p Progress, digest string, size int64, err error)
	Now     func() time.Time
}

// saveInterval is how much of the work a crash may cost.
const saveInterval = time.Minute

// retryInterval is how long to wait after an error of Load, Save or the store.
const retryInterval = time.Minute

// Run scrubs until ctx ends. It returns nil then; errors on the way are given to report and tried again.
func (s *Scrubber) Run(ctx context.Context, report func(error)) error {
	for ctx.Err() == nil {
		wait, err := s.next(ctx)
		if err != nil && ctx.Err() == nil {
			report(err)
			wait = min(retryInterval, s.Interval)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
	}
	return nil
}

// next does the pass that is due, or goes on with one that was broken off, and returns how long to wait for the next.
func (s *Scrubber) next(ctx context.Context) (time.Duration, error) {
	p, err := s.Load(ctx)
	if err != nil {
		return 0, fmt.Errorf("scrub: %w", err)
	}
	running := p.running()
	if wait := s.wait(p); wait > 0 && !running {
		return wait, nil
	}
	if !running {
		p = Progress{Completed: p.Completed}
	}
	// A time of a clock that was ahead would be told as that of the end of the pass.
	if now := s.Now(); !running || p.Started.After(now) {
		p.Started, p.Completed = now, past(p.Completed, now)
		if err := s.Save(ctx, p); err != nil {
			return 0, fmt.Errorf("scrub: %w", err)
		}
	}
	if err := s.pass(ctx, &p); err != nil {
		return 0, fmt.Errorf("scrub: %w", err)
	}
	return s.wait(p), nil
}

// wait is how long to wait for the next pass. Nobody knows when one was begun by a clock that was ahead, so the next is due then.
func (s *Scrubber) wait(p Progress) time.Duration {
	wait := p.Started.Add(s.Interval).Sub(s.Now())
	if wait > s.Interval {
		return 0
	}
	return max(wait, 0)
}

// past is the time of the end of an earlier pass, by a clock that may have been ahead: not later than the beginning of this one.
func past(t, begin time.Time) time.Time {
	if t.Before(begin) {
		return t
	}
	return begin.Add(-time.Nanosecond)
}

// pass reads what comes after the position.
func (s *Scrubber) pass(ctx context.Context, p *Progress) error {
	digests, err := s.list(ctx, p.Position)
	if err != nil {
		return err
	}
	saved := s.Now()
	for _, d := range digests {
		digest := content.Algorithm + ":" + hex.EncodeToString(d[:])
		if err := s.one(ctx, p, digest); err != nil {
			return errors.Join(err, s.Save(context.WithoutCancel(ctx), *p))
		}
		if s.Now().Sub(saved) >= saveInterval {
			if err := s.Save(ctx, *p); err != nil {
				return err
			}
			saved = s.Now()
		}
	}
	// A clock that stands still would make the pass look as if it had not ended.
	p.Position, p.Completed = "", latest(s.Now(), p.Started)
	if err := s.Save(ctx, *p); err != nil {
		return err
	}
	s.Observe(*p, "", 0, nil)
	return nil
}

// one reads one blob. An error means that the pass cannot go on.
func (s *Scrubber) one(ctx context.Context, p *Progress, digest string) error {
	n, err := Blob(ctx, s.Store, digest, s.Pace)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, content.ErrNotFound) {
		p.Position = digest
		return nil // deleted since the pass began
	}
	p.Blobs++
	p.Bytes += n
	if errors.Is(err, ErrDamaged) {
		p.Damaged++
		if mendErr := s.Damaged(ctx, digest); mendErr != nil {
			p.Failures++
			err = errors.Join(err, mendErr)
		}
	} else if err != nil {
		p.Failures++
	}
	p.Position = digest
	s.Observe(*p, digest, n, err)
	return nil
}

// list gives the digests after a position, in order. It takes 32 bytes of memory for each.
func (s *Scrubber) list(ctx context.Context, after string) ([][32]byte, error) {
	var all [][32]byte
	err := s.Store.Walk(ctx, func(info content.Info) error {
		if info.Digest <= after {
			return nil
		}
		digits, err := content.ParseDigest(info.Digest)
		if err != nil {
			return err
		}
		var d [32]byte
		if _, err := hex.Decode(d[:], []byte(digits)); err != nil {
			return err
		}
		all = append(all, d)
		return nil
	})
	slices.SortFunc(all, func(a, b [32]byte) int { return slices.Compare(a[:], b[:]) })
	return all, err
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
