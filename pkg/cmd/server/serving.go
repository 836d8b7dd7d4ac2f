// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/pki"
)

// renewInterval is how often the age of the serving certificate is looked at.
const renewInterval = 12 * time.Hour

// servingFiles are where the serving certificate is kept; the generic server follows changes of them.
type servingFiles struct {
	cert, key string
	authority *pki.Authority
	names     []string
	addresses []net.IP
}

func newServingFiles(dir string, authority *pki.Authority, names []string, addresses []net.IP) *servingFiles {
	return &servingFiles{
		cert: filepath.Join(dir, "serving.crt"), key: filepath.Join(dir, "serving.key"),
		authority: authority, names: names, addresses: addresses,
	}
}

// issue writes a new certificate. The key comes first: a reader that sees one new and one old file
// notices that they do not fit, and keeps what it has.
func (s *servingFiles) issue() error {
	cert, key, err := s.authority.Serving(s.names, s.addresses, servingValidity)
	if err != nil {
		return err
	}
	if err := writeFile(s.key, key); err != nil {
		return err
	}
	return writeFile(s.cert, cert)
}

// renew keeps the certificate younger than two thirds of its life, until ctx ends.
func (s *servingFiles) renew(ctx context.Context) {
	wait.JitterUntilWithContext(ctx, func(ctx context.Context) {
		pair, err := tls.LoadX509KeyPair(s.cert, s.key)
		if err == nil && time.Until(pair.Leaf.NotAfter) > servingValidity/3 {
			return
		}
		if err := s.issue(); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot renew the serving certificate")
			return
		}
		klog.FromContext(ctx).Info("Renewed the serving certificate")
	}, renewInterval, 0.1, true)
}

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
