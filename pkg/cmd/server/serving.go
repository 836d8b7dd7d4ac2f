// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"net"
	"os"
)

// serviceNames are the names under which a Service is reached inside a cluster.
func serviceNames(service, namespace string) []string {
	return []string{service + "." + namespace + ".svc", service + "." + namespace + ".svc.cluster.local", service + "." + namespace, service, "localhost"}
}

// ownAddresses are the addresses under which this process is reached without the Service.
func ownAddresses() ([]net.IP, error) {
	addresses := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	if pod := os.Getenv("POD_IP"); pod != "" {
		ip := net.ParseIP(pod)
		if ip == nil {
			return nil, fmt.Errorf("POD_IP: %q is no address", pod)
		}
		addresses = append(addresses, ip)
	}
	return addresses, nil
}

// addresses are all addresses under which the server is reached.
func (p *process) addresses(ctx context.Context) ([]net.IP, error) {
	addresses, err := ownAddresses()
	if err != nil {
		return nil, err
	}
	if p.endpoint != nil {
		if ip := p.endpoint.clusterIP(ctx); ip != nil {
			addresses = append(addresses, ip)
		}
	}
	if b := p.Recommended.SecureServing.BindAddress; b != nil && !b.IsUnspecified() && !b.IsLoopback() {
		addresses = append(addresses, b)
	}
	return addresses, nil
}
