// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket

import (
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
