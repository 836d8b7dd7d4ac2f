// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net"
	"slices"
	"strings"
	"testing"
)

func TestOwnAddresses(t *testing.T) {
	t.Setenv("POD_IP", "")
	if got, err := ownAddresses(); err != nil || len(got) != 2 {
		t.Errorf("got %v, %v", got, err)
	}
	t.Setenv("POD_IP", "10.1.2.3")
	if got, err := ownAddresses(); err != nil || !slices.ContainsFunc(got, net.IPv4(10, 1, 2, 3).Equal) {
		t.Errorf("got %v, %v", got, err)
	}
	t.Setenv("POD_IP", "here")
	if _, err := ownAddresses(); err == nil || !strings.Contains(err.Error(), "POD_IP") {
		t.Errorf("got %v", err)
	}
}

func TestPodIdentity(t *testing.T) {
	t.Setenv("POD_NAME", "rukpak-apiserver-0")
	if got := podIdentity(); got != "rukpak-apiserver-0" {
		t.Errorf("got %s", got)
	}
	t.Setenv("POD_NAME", "")
	if got := podIdentity(); got == "" {
		t.Error("without a pod it has no name")
	}
}
