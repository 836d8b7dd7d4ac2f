// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package failpoint

import (
	"errors"
	"io/fs"
	"os"
	"sync"
)

// armed is a plan in a file, which goes when it is acted upon.
type armed struct {
	path string

	mu   sync.Mutex
	text string
	plan *plan // of text
}

func (a *armed) hit(name string, kill func()) {
	if pt := a.due(name); pt != nil {
		pt.act(name, kill)
	}
}

// due returns the point if the file says that it is to act now, and removes the file then.
func (a *armed) due(name string) *point {
	a.mu.Lock()
	defer a.mu.Unlock()
	text, err := os.ReadFile(a.path)
	if errors.Is(err, fs.ErrNotExist) {
		a.text, a.plan = "", nil
		return nil
	}
	if err != nil {
		fail(err)
	}
	if a.plan == nil || a.text != string(text) {
		if a.plan, err = parse(string(text)); err != nil {
			fail(err)
		}
		a.text = string(text)
	}
	pt := a.plan.due(name)
	if pt == nil {
		return nil
	}
	if err := os.Remove(a.path); err != nil {
		fail(err)
	}
	a.text, a.plan = "", nil
	return pt
}
