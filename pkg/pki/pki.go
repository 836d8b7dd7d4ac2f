// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pki makes the certificates that the server needs: an authority of its own, and what that signs.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

// backdate is how long before now a certificate begins, for clocks that are not quite right.
const backdate = 5 * time.Minute

// Authority signs certificates.
type Authority struct {
	// CertPEM and KeyPEM are the authority, to be kept. The key is a secret.
	CertPEM, KeyPEM []byte

	cert *x509.Certificate
	key  crypto.Signer
}

// NewAuthority makes an authority that is good for validity.
func NewAuthority(name string, validity time.Duration) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of authority %q: %w", name, err)
	}
	template, err := newTemplate(pkix.Name{CommonName: name}, validity)
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make authority %q: %w", name, err)
	}
	return encodeAuthority(der, key)
}

func encodeAuthority(der []byte, key *ecdsa.PrivateKey) (*Authority, error) {
	certPEM, keyPEM, err := encode(der, key)
	if err != nil {
		return nil, err
	}
	return LoadAuthority(certPEM, keyPEM)
}

// LoadAuthority takes an authority that was kept.
func LoadAuthority(certPEM, keyPEM []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("read the authority: %w", err)
	}
	cert := pair.Leaf
	if !cert.IsCA {
		return nil, errors.New("read the authority: its certificate is not that of an authority")
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, errors.New("read the authority: its key cannot sign")
	}
	return &Authority{CertPEM: certPEM, KeyPEM: keyPEM, cert: cert, key: key}, nil
}

// Certificate is that of the authority. It is not to be changed.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

// Serving makes a certificate for a server of these names and addresses, of which there is at least one.
func (a *Authority) Serving(names []string, addresses []net.IP, validity time.Duration) (certPEM, keyPEM []byte, err error) {
	return a.server(names, addresses, validity, x509.ExtKeyUsageServerAuth)
}

// Peer makes a certificate for a server that also connects as a client of its equals, with these names and addresses,
// of which there is at least one.
func (a *Authority) Peer(names []string, addresses []net.IP, validity time.Duration) (certPEM, keyPEM []byte, err error) {
	return a.server(names, addresses, validity, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
}

func (a *Authority) server(names []string, addresses []net.IP, validity time.Duration, usages ...x509.ExtKeyUsage) (certPEM, keyPEM []byte, err error) {
	var subject pkix.Name
	if len(names) > 0 {
		subject.CommonName = names[0]
	}
	return a.issue(subject, validity, func(t *x509.Certificate) {
		t.DNSNames, t.IPAddresses, t.ExtKeyUsage = names, addresses, usages
	})
}

// Client makes a certificate with which a user logs in, as Kubernetes reads it: the common name is that
// of the user, the organizations are the groups.
func (a *Authority) Client(user string, groups []string, validity time.Duration) (certPEM, keyPEM []byte, err error) {
	return a.issue(pkix.Name{CommonName: user, Organization: groups}, validity, func(t *x509.Certificate) {
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	})
}

func (a *Authority) issue(subject pkix.Name, validity time.Duration, usage func(*x509.Certificate)) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make the key of %q: %w", subject.CommonName, err)
	}
	template, err := newTemplate(subject, validity)
	if err != nil {
		return nil, nil, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	// Nothing outlives what signs it.
	if template.NotAfter.After(a.cert.NotAfter) {
		template.NotAfter = a.cert.NotAfter
	}
	usage(template)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign the certificate of %q: %w", subject.CommonName, err)
	}
	return encode(der, key)
}

func newTemplate(subject pkix.Name, validity time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: subject, NotBefore: now.Add(-backdate), NotAfter: now.Add(validity),
	}, nil
}

func encode(der []byte, key *ecdsa.PrivateKey) (certPEM, keyPEM []byte, err error) {
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a key: %w", err)
	}
	certPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return certPEM, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), nil
}
