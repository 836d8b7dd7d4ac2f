// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package failpoint

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
)

// Enabled says whether this build has failpoints.
const Enabled = true

// environment is read once, at the first hit: nothing of it changes in a process.
var environment = sync.OnceValue(func() *plan {
	p, err := parse(os.Getenv("RUKPAK_FAILPOINTS"))
	if err != nil {
		fmt.Fprintf(os.Stderr, "RUKPAK_FAILPOINTS: %v\n", err)
		os.Exit(2)
	}
	return p
})

// Hit does what RUKPAK_FAILPOINTS says for this point.
func Hit(name string) { environment().hit(name, kill) }

// kill ends this process as SIGKILL does: no deferred function, no flush.
func kill() {
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		panic(err)
	}
	time.Sleep(time.Hour) // at most until the signal arrives
}
