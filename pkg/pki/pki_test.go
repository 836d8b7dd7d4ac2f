// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"slices"
	"testing"
	"time"
)

func authority(t *testing.T, name string, validity time.Duration) *Authority {
	t.Helper()
	a, err := NewAuthority(name, validity)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func leaf(t *testing.T, certPEM, keyPEM []byte) *x509.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

func pool(a *Authority) *x509.CertPool {
	p := x509.NewCertPool()
	p.AppendCertsFromPEM(a.CertPEM)
	return p
}

func TestServingCertificate(t *testing.T) {
	a, other := authority(t, "a", time.Hour), authority(t, "a", time.Hour)
	cert, key, err := a.Serving([]string{"server.team.svc", "localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	c := leaf(t, cert, key)
	for name, test := range map[string]struct {
		options x509.VerifyOptions
		good    bool
	}{
		"its name":           {x509.VerifyOptions{Roots: pool(a), DNSName: "server.team.svc"}, true},
		"its other name":     {x509.VerifyOptions{Roots: pool(a), DNSName: "localhost"}, true},
		"its address":        {x509.VerifyOptions{Roots: pool(a), DNSName: "127.0.0.1"}, true},
		"another name":       {x509.VerifyOptions{Roots: pool(a), DNSName: "server.other.svc"}, false},
		"another authority":  {x509.VerifyOptions{Roots: pool(other), DNSName: "localhost"}, false},
		"as a client":        {x509.VerifyOptions{Roots: pool(a), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, false},
		"a clock that lags":  {x509.VerifyOptions{Roots: pool(a), CurrentTime: time.Now().Add(-4 * time.Minute)}, true},
		"long before":        {x509.VerifyOptions{Roots: pool(a), CurrentTime: time.Now().Add(-time.Hour)}, false},
		"after its last day": {x509.VerifyOptions{Roots: pool(a), CurrentTime: time.Now().Add(2 * time.Minute)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := c.Verify(test.options); (err == nil) != test.good {
				t.Errorf("got %v", err)
			}
		})
	}
	if c.IsCA {
		t.Error("a server may sign certificates")
	}
	if _, err := LoadAuthority(cert, key); err == nil {
		t.Error("the certificate of a server is taken for an authority")
	}
}

func TestAServerOfAddressesAlone(t *testing.T) {
	a := authority(t, "a", time.Hour)
	cert, key, err := a.Serving(nil, []net.IP{net.IPv6loopback}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leaf(t, cert, key).Verify(x509.VerifyOptions{Roots: pool(a), DNSName: "::1"}); err != nil {
		t.Error(err)
	}
}

func TestClientCertificate(t *testing.T) {
	a := authority(t, "a", time.Hour)
	cert, key, err := a.Client("jane", []string{"ops", "dev"}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	c := leaf(t, cert, key)
	groups := slices.Sorted(slices.Values(c.Subject.Organization))
	if c.Subject.CommonName != "jane" || !slices.Equal(groups, []string{"dev", "ops"}) {
		t.Errorf("subject %v", c.Subject)
	}
	for usage, good := range map[x509.ExtKeyUsage]bool{x509.ExtKeyUsageClientAuth: true, x509.ExtKeyUsageServerAuth: false} {
		if _, err := c.Verify(x509.VerifyOptions{Roots: pool(a), KeyUsages: []x509.ExtKeyUsage{usage}}); (err == nil) != good {
			t.Errorf("usage %v: %v", usage, err)
		}
	}
}

func TestNothingOutlivesItsAuthority(t *testing.T) {
	a := authority(t, "a", time.Hour)
	end := leaf(t, a.CertPEM, a.KeyPEM).NotAfter
	cert, key, err := a.Client("jane", nil, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if got := leaf(t, cert, key).NotAfter; !got.Equal(end) {
		t.Errorf("it ends %v, its authority %v", got, end)
	}
}

func TestAnAuthorityIsKept(t *testing.T) {
	a := authority(t, "a", time.Hour)
	again, err := LoadAuthority(a.CertPEM, a.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := again.Serving([]string{"localhost"}, nil, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leaf(t, cert, key).Verify(x509.VerifyOptions{Roots: pool(a), DNSName: "localhost"}); err != nil {
		t.Error(err)
	}
}

func TestAnAuthorityThatIsNone(t *testing.T) {
	a, b := authority(t, "a", time.Hour), authority(t, "b", time.Hour)
	for name, test := range map[string]struct{ cert, key []byte }{
		"nothing":            {},
		"no certificate":     {[]byte("x"), a.KeyPEM},
		"no key":             {a.CertPEM, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")})},
		"the key of another": {a.CertPEM, b.KeyPEM},
		"half a certificate": {a.CertPEM[:len(a.CertPEM)/2], a.KeyPEM},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := LoadAuthority(test.cert, test.key); err == nil {
				t.Error("it is taken")
			}
		})
	}
}

// Two certificates of one authority differ in their serial numbers.
func TestSerialNumbers(t *testing.T) {
	a := authority(t, "a", time.Hour)
	seen := map[string]bool{leaf(t, a.CertPEM, a.KeyPEM).SerialNumber.String(): true}
	for range 5 {
		cert, key, err := a.Client("jane", nil, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		n := leaf(t, cert, key).SerialNumber
		if seen[n.String()] || n.Sign() <= 0 {
			t.Errorf("serial number %v", n)
		}
		seen[n.String()] = true
	}
}
