// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"rukpak.io/apiserver/pkg/cmd/bundle/place"
)

// What this machine does not let be done has a code of its own, and where files are kept is said after Ctrl-C as well.
func TestExplainLocal(t *testing.T) {
	link := func(err error) error { return &os.LinkError{Op: "rename", Old: "a", New: "b", Err: err} }
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		name string
		ctx  context.Context
		err  error
		code int
		hint string
	}{
		{"a file", t.Context(), &os.PathError{Op: "open", Path: "a", Err: syscall.EACCES}, ExitLocal, ""},
		{"a renaming", t.Context(), link(syscall.EACCES), ExitLocal, ""},
		{"a renaming to another file system", t.Context(), link(syscall.EXDEV), ExitLocal, "cannot be renamed"},
		{"a renaming of what is in use", t.Context(), link(syscall.EBUSY), ExitLocal, "cannot be renamed"},
		{"Ctrl-C", ended, link(syscall.EACCES), ExitInterrupted, ""},
		{"files that are kept, after Ctrl-C", ended, notPlaced(&place.KeptError{Dir: "/here", Err: errors.New("why")}), ExitLocal, "/here"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newSession(streamsTo(io.Discard)).explain(test.ctx, test.err)
			if p.code != test.code || !strings.Contains(p.hint, test.hint) || (p.hint == "") != (test.hint == "") {
				t.Errorf("%d: %v: %s", p.code, p, p.hint)
			}
		})
	}
}
