// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package diskfull_test

import (
	"errors"
	"io/fs"
	"syscall"
	"testing"

	"rukpak.io/apiserver/pkg/diskfull"
)

func TestIs(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("no space left on device"), false},
		{syscall.EACCES, false},
		{&fs.PathError{Op: "write", Path: "a", Err: syscall.ENOSPC}, true},
		{errors.Join(errors.New("close"), syscall.EDQUOT), true},
	} {
		if got := diskfull.Is(tc.err); got != tc.want {
			t.Errorf("%v: %v", tc.err, got)
		}
	}
}
