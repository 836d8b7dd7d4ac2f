// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package aggregation

import (
	"crypto/x509"
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	claimsGauge = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Name: "rukpak_api_claims", Help: "Objects of others that lay claim to the API group of this server, by kind.", StabilityLevel: metrics.ALPHA,
	}, []string{"kind"})
	expirationGauge = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Name: "rukpak_certificate_expiration_seconds", StabilityLevel: metrics.ALPHA,
		Help: "When a certificate ends, in seconds since the epoch: that which is served, the authority that signs, and the next one.",
	}, []string{"certificate"})
	mismatchGauge = metrics.NewGauge(&metrics.GaugeOpts{
		Name: "rukpak_certificate_mismatch", Help: "1 while kube-apiserver does not trust the certificate that is served.", StabilityLevel: metrics.ALPHA,
	})
)

var registerMetrics = sync.OnceFunc(func() {
	legacyregistry.MustRegister(claimsGauge, expirationGauge, mismatchGauge)
})

func observeClaims(claims []Claim) {
	count := map[string]float64{"APIService": 0, "CustomResourceDefinition": 0}
	for _, c := range claims {
		count[c.Object.Kind]++
	}
	for kind, n := range count {
		claimsGauge.WithLabelValues(kind).Set(n)
	}
}

// The certificates of the metric of expiration.
const (
	CertificateServing       = "serving"
	CertificateAuthority     = "ca"
	CertificateNextAuthority = "next-ca"
)

// ObserveExpiration shows when a certificate ends; none, if it is nil.
func ObserveExpiration(name string, cert *x509.Certificate) {
	registerMetrics()
	if cert == nil {
		expirationGauge.DeleteLabelValues(name)
		return
	}
	expirationGauge.WithLabelValues(name).Set(float64(cert.NotAfter.Unix()))
}
