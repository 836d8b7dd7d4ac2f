// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package failpoint

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
)

// Enabled says whether this build has failpoints.
const Enabled = true

// environment is read once, at the first hit: nothing of it changes in a process.
var environment = sync.OnceValue(func() interface{ hit(string, func()) } {
	text := os.Getenv("RUKPAK_FAILPOINTS")
	if path, ok := strings.CutPrefix(text, "@"); ok {
		return &armed{path: path}
	}
	p, err := parse(text)
	if err != nil {
		fail(err)
	}
	return p
})

// Hit does what RUKPAK_FAILPOINTS says for this point.
func Hit(name string) { environment().hit(name, kill) }

// fail ends this process with a message.
func fail(err error) {
	fmt.Fprintf(os.Stderr, "RUKPAK_FAILPOINTS: %v\n", err)
	os.Exit(2)
}

// kill ends this process as SIGKILL does: no deferred function, no flush.
func kill() {
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		panic(err)
	}
	// The kernel lets nobody kill the first process of a container from within, so that
	// it has to go by itself, as quickly.
	syscall.Exit(128 + int(syscall.SIGKILL))
}
