// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Tracer is the program of images that must never run: it connects to the TCP
// address that is its argument, and so tells whoever listens there that it ran.
package main

import (
	"fmt"
	"net"
	"os"
	"time"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: tracer HOST:PORT")
		os.Exit(2)
	}
	connection, err := net.DialTimeout("tcp", os.Args[1], 10*time.Second)
	if err == nil {
		err = connection.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tracer:", err)
		os.Exit(1)
	}
}
