// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

func TestTransferFlags(t *testing.T) {
	o, _ := parse(t, "--max-content-readers=-1", "--max-content-readers-per-user=-2", "--content-drain=-1s")
	err := o.Validate()
	for _, flag := range []string{"--max-content-readers: -1", "--max-content-readers-per-user: -2", "--content-drain: -1s"} {
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("got %v, want it to name %s", err, flag)
		}
	}
}

// What a connection that a client does not read from holds is bounded.
func TestConnectionsHoldLittle(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	info := &genericapiserver.SecureServingInfo{Listener: listener}
	makeFrugal(info)
	makeFrugal(nil)
	defer info.Listener.Close()
	client, err := net.Dial("tcp", info.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := info.Listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The generic server sets keep-alive on a connection of this type alone.
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var got int
	if err := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT) }); err != nil {
		t.Fatal(err)
	}
	if err != nil || got != unsentBytes {
		t.Errorf("a connection may hold %d bytes: %v", got, err)
	}
}
