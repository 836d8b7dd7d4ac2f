// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package aggregation

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// lookTimeout bounds one look at the APIService.
const lookTimeout = 10 * time.Second

// TrustConfig says what is compared.
type TrustConfig struct {
	// Served returns the certificate that is served, with its chain, PEM.
	Served func() []byte
	// Host is the name under which kube-apiserver checks it.
	Host string
	// Read returns the APIService; nil where there is no kube-apiserver.
	Read func(context.Context) (View, error)
	// Own means that the certificate comes from the server's own authority: kube-apiserver needs a caBundle then.
	Own bool
	// Near is how long before its end a certificate should long have been renewed. 0 means a tenth of its life.
	Near time.Duration
	// Grace is how long whoever mends a mismatch has for it.
	Grace time.Duration
}

// Trust compares the certificate that is served with what kube-apiserver trusts.
type Trust struct {
	config TrustConfig

	mu    sync.Mutex
	view  *View
	since time.Time // of the mismatch; zero while there is none
	wrong error
}

// NewTrust returns a Trust that has not looked yet.
func NewTrust(config TrustConfig) *Trust {
	registerMetrics()
	return &Trust{config: config}
}

// Look compares, and returns why all is not well or cannot be seen to be.
func (t *Trust) Look(ctx context.Context) error {
	leaf, chain, err := parse(t.config.Served())
	if err != nil {
		return err
	}
	ObserveExpiration(CertificateServing, leaf)
	if t.config.Read == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	v, err := t.config.Read(ctx)
	if err != nil {
		// What was seen last stands: kube-apiserver being away is no fault of a certificate.
		return err
	}
	wrong := t.compare(v, leaf, chain)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.view, t.wrong = &v, wrong
	if wrong == nil {
		t.since = time.Time{}
		mismatchGauge.Set(0)
		return nil
	}
	if t.since.IsZero() {
		t.since = time.Now()
	}
	mismatchGauge.Set(1)
	return wrong
}

// compare says why kube-apiserver does not trust a certificate.
func (t *Trust) compare(v View, leaf *x509.Certificate, chain *x509.CertPool) error {
	if v.Absent || v.Foreign != "" || v.Insecure {
		return nil
	}
	if len(v.CABundle) == 0 {
		if t.config.Own {
			return fmt.Errorf("the APIService %s has no caBundle", Name)
		}
		// Then it is what kube-apiserver's system trusts, which is not to be seen from here.
		return nil
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(v.CABundle)
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: chain, DNSName: t.config.Host})
	if err != nil {
		return fmt.Errorf("by the caBundle of the APIService %s the certificate that is served is not to be trusted: %w", Name, err)
	}
	return nil
}

// CABundle is what kube-apiserver was last seen to trust, PEM.
func (t *Trust) CABundle() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.view == nil || t.view.Absent || t.view.Foreign != "" {
		return nil
	}
	return t.view.CABundle
}

// Ready is a readiness check. It fails when the certificate has expired, or when kube-apiserver has not
// trusted it for the time of grace: then nobody gets discovery from this server, and another replica may do better.
func (t *Trust) Ready(*http.Request) error {
	leaf, _, err := parse(t.config.Served())
	if err != nil {
		return err
	}
	if now := time.Now(); now.After(leaf.NotAfter) {
		return fmt.Errorf("the certificate that is served ended %v ago", now.Sub(leaf.NotAfter).Round(time.Second))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wrong != nil && time.Since(t.since) > t.config.Grace {
		return t.wrong
	}
	return nil
}

// Healthy is a health check. It fails when the server is not ready, and when the certificate is so near to its end that it should have
// been renewed long ago.
func (t *Trust) Healthy(req *http.Request) error {
	if err := t.Ready(req); err != nil {
		return err
	}
	leaf, _, err := parse(t.config.Served())
	if err != nil {
		return err
	}
	near := t.config.Near
	if near == 0 {
		near = leaf.NotAfter.Sub(leaf.NotBefore) / 10
	}
	if left := time.Until(leaf.NotAfter); left < near {
		return fmt.Errorf("the certificate that is served ends in %v and was not renewed", left.Round(time.Second))
	}
	return nil
}

// parse returns a certificate and those that it comes with.
func parse(served []byte) (*x509.Certificate, *x509.CertPool, error) {
	var leaf *x509.Certificate
	chain := x509.NewCertPool()
	for {
		var block *pem.Block
		if block, served = pem.Decode(served); block == nil {
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, nil, fmt.Errorf("read the certificate that is served: %w", err)
		}
		if leaf == nil {
			leaf = cert
		} else {
			chain.AddCert(cert)
		}
	}
	if leaf == nil {
		return nil, nil, errors.New("no certificate is served")
	}
	return leaf, chain, nil
}
