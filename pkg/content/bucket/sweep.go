// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket

import (
	"context"
	"errors"
	"fmt"
	"time"

	"rukpak.io/apiserver/pkg/content"
)

// Sweep removes the uploads of writers that died, and indexes whose blobs are gone.
func (s *Store) Sweep(ctx context.Context, olderThan time.Duration) error {
	before := time.Now().Add(-olderThan)
	if err := errors.Join(s.sweepTemporary(ctx, before), s.sweepIndexes(ctx, before)); err != nil {
		return fmt.Errorf("sweep content: %w", err)
	}
	return nil
}

func (s *Store) sweepTemporary(ctx context.Context, before time.Time) error {
	if s.cloud.abandon != nil {
		if err := s.cloud.abandon(ctx, s.prefix+tmpFolder, before); err != nil {
			return fmt.Errorf("end unfinished uploads: %w", err)
		}
	}
	list := s.list(tmpFolder)
	for {
		object, err := list.next(ctx)
		if err != nil || object == nil {
			return err
		}
		if object.modified.After(before) {
			continue
		}
		if err := s.remove(ctx, list.prefix+object.name); err != nil {
			return err
		}
	}
}

// sweepIndexes goes through both listings side by side, which are in the same order.
func (s *Store) sweepIndexes(ctx context.Context, before time.Time) error {
	blobs, indexes := s.list(blobFolder), s.list(indexFolder)
	blob, err := blobs.next(ctx)
	if err != nil {
		return err
	}
	for {
		index, err := indexes.next(ctx)
		if err != nil || index == nil {
			return err
		}
		for blob != nil && blob.name < index.name {
			if blob, err = blobs.next(ctx); err != nil {
				return err
			}
		}
		if blob != nil && blob.name == index.name || index.modified.After(before) {
			continue
		}
		if err := s.sweepIndex(ctx, index.name); err != nil {
			return err
		}
	}
}

// sweepIndex removes an index if its blob is gone indeed: the listings are not of one moment.
func (s *Store) sweepIndex(ctx context.Context, name string) error {
	_, err := s.head(ctx, s.prefix+blobFolder+name)
	if errors.Is(err, content.ErrNotFound) {
		return s.remove(ctx, s.prefix+indexFolder+name)
	}
	return err
}
