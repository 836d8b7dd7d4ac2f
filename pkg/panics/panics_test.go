// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package panics_test

import (
	"errors"
	"testing"

	"rukpak.io/apiserver/pkg/panics"
)

func TestCatch(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		work  func() error
		is    error
		panic bool
	}{
		"it succeeds":         {work: func() error { return nil }},
		"it fails":            {work: func() error { return broken }, is: broken},
		"it panics":           {work: func() error { panic("secret") }, panic: true},
		"it panics with nil":  {work: func() error { panic(nil) }, panic: true},
		"it panics by itself": {work: func() error { one := []error{nil}; return one[len(one)] }, panic: true},
	} {
		t.Run(name, func(t *testing.T) {
			err := panics.Catch(t.Context(), "an upload", test.work)
			caught, ok := errors.AsType[*panics.Error](err)
			if ok != test.panic || !test.panic && err != test.is {
				t.Fatal(err)
			}
			if ok && caught.Error() != "the server failed over an upload; its log says more" {
				t.Error(caught)
			}
		})
	}
}
