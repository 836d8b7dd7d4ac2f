// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket

import (
	"context"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
)

// New returns a store in a bucket of this process.
func New(b *blob.Bucket, prefix string) *Store {
	local := cloud{
		absent: func(err error) bool { return gcerrors.Code(err) == gcerrors.NotFound },
		full:   func(error) bool { return false },
		check:  checkMD5,
	}
	return newStore(b, local, prefix, patience{Call: DefaultCall, Stall: DefaultStall}, func() {})
}

// SetTurn says how long a writer waits for memory.
func (s *Store) SetTurn(d time.Duration) { s.turn = d }

// MaxUploads is how many writers have memory at the same time, and ErrBusy the error of one more.
const MaxUploads = maxUploads

var ErrBusy = errBusy

// Copy copies an object of so many bytes.
func (s *Store) Copy(ctx context.Context, to, from string, size int64) error {
	return s.copy(ctx, to, from, size)
}
