// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"rukpak.io/apiserver/pkg/pki"
)

// broughtAlong has one server serve with a certificate from elsewhere, and replaces that and its CA in place.
func (w *world) broughtAlong(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	replace := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(file(name)+".new", data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file(name)+".new", file(name)); err != nil {
			t.Fatal(err)
		}
	}
	issue := func(authority *pki.Authority) {
		t.Helper()
		cert, key, err := authority.Serving([]string{host}, nil, 24*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		replace("tls.key", key)
		replace("tls.crt", cert)
	}
	first, second := must(pki.NewAuthority("first", 24*time.Hour))(t), must(pki.NewAuthority("second", 24*time.Hour))(t)
	issue(first)
	replace("ca.crt", first.CertPEM)
	w.start(t, 1, "--tls-cert-file="+file("tls.crt"), "--tls-private-key-file="+file("tls.key"), "--tls-ca-file="+file("ca.crt"), "--ca-overlap=2s")
	published := func(want []byte) {
		t.Helper()
		eventually(t, "the caBundle is what was brought along", func(ctx context.Context) error {
			got, err := w.caBundle(ctx)
			if err == nil && !bytes.Equal(got, want) {
				err = fmt.Errorf("it is %s", got)
			}
			return err
		})
	}
	published(first.CertPEM)
	both := append(first.CertPEM[:len(first.CertPEM):len(first.CertPEM)], second.CertPEM...)
	replace("ca.crt", both)
	published(both)
	issue(second)
	eventually(t, "the new certificate is served", func(ctx context.Context) error {
		_, err := w.fetch(ctx, w.servers[0], w.admin(t, second.CertPEM), bundlesURL)
		return err
	})
	replace("ca.crt", second.CertPEM)
	published(second.CertPEM)
	eventually(t, "the API is available", w.available)
	if !w.servers[0].Running() {
		t.Errorf("it ended: %s", w.servers[0].Log())
	}
}
