// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"errors"
	"io/fs"

	"rukpak.io/apiserver/pkg/tarball"
)

// PackReason finds the reason of an error of package tarball, whichever side the
// archive is made on. It returns "" for errors that are about no entry and no limit.
func PackReason(err error) string {
	if _, ok := errors.AsType[*tarball.LimitError](err); ok {
		return ReasonLimitExceeded
	}
	if _, ok := errors.AsType[*tarball.EntryError](err); !ok {
		return ""
	}
	// What the file system says is no verdict on the content, except that it is not there.
	if _, ok := errors.AsType[*fs.PathError](err); ok && !errors.Is(err, fs.ErrNotExist) {
		return ReasonContentUnreadable
	}
	return ReasonContentRefused
}
