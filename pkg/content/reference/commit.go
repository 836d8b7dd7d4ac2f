// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"rukpak.io/apiserver/pkg/content"
)

// Settler waits for what is being deleted, as Records do.
type Settler interface {
	Settle(ctx context.Context, store, digest string) error
}

// Stater is what Commit needs of a content.Store.
type Stater interface {
	Stat(ctx context.Context, digest string) (content.Info, error)
}

// ErrRemoved means that a blob was removed in the moment in which it was stored, with a damaged one of the same digest.
// To store it anew helps.
var ErrRemoved = errors.New("content was removed while it was stored")

// Commit commits a writer whose record was added, and returns once the blob is there to stay: step 3 of committing. store
// is that of the writer, and name what records call it.
func Commit(ctx context.Context, r Settler, name string, store Stater, w content.Writer, digest string) error {
	if err := w.Commit(ctx, digest); err != nil {
		return err
	}
	if err := r.Settle(ctx, name, digest); err != nil {
		return err
	}
	if _, err := store.Stat(ctx, digest); errors.Is(err, content.ErrNotFound) {
		return fmt.Errorf("%w: %s", ErrRemoved, digest)
	} else if err != nil {
		return fmt.Errorf("look for what was committed: %w", err)
	}
	return nil
}

// Settle returns when the digest is not being deleted. It waits as Add does, with the same errors.
func (r *Records) Settle(ctx context.Context, store, digest string) error {
	if err := checkRef(Ref{Store: store, Digest: digest, BundleUID: "any"}); err != nil {
		return err
	}
	key := r.tombstoneKey(store, digest)
	return r.untilDeleted(ctx, func() error {
		resp, err := r.kv.Get(ctx, key)
		if err != nil || len(resp.Kvs) == 0 {
			return err
		}
		tomb, err := r.parseTombstone(store, digest, resp.Kvs[0])
		if err == nil && tomb.State == Deleting {
			return ErrDeleting
		}
		return err
	})
}

// waitTimeout bounds how long Add and Settle wait for a deletion. It is what a deletion may take, and the time after which it is taken back
// if it fails. Who waits keeps others waiting, and kube-apiserver ends a request after a minute.
const waitTimeout = 45 * time.Second

// errTooLong is why a wait ended before its context.
var errTooLong = fmt.Errorf("it still is after %v", waitTimeout)

// untilDeleted tries again while the error is ErrDeleting, with growing pauses of at most a second, for waitTimeout.
func (r *Records) untilDeleted(ctx context.Context, try func() error) error {
	const most = time.Second
	pause := 10 * time.Millisecond
	ctx, cancel := context.WithTimeoutCause(ctx, waitTimeout, errTooLong)
	defer cancel()
	for {
		err := try()
		if !errors.Is(err, ErrDeleting) {
			return err
		}
		// Committers of one digest would otherwise come back all at once.
		timer := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w: %w", err, context.Cause(ctx))
		case <-timer.C:
		}
		pause = min(2*pause, most)
	}
}
