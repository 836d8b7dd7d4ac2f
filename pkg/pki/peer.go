// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"time"
)

// Peer makes a certificate for a server that also connects as a client of its equals, with these names and addresses,
// of which there is at least one.
func (a *Authority) Peer(names []string, addresses []net.IP, validity time.Duration) (certPEM, keyPEM []byte, err error) {
	var subject pkix.Name
	if len(names) > 0 {
		subject.CommonName = names[0]
	}
	return a.issue(subject, validity, func(t *x509.Certificate) {
		t.DNSNames, t.IPAddresses = names, addresses
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	})
}
