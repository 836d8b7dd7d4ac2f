// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"context"
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/pki"
)

// frontProxy replaces the CA by which kube-apiserver shows itself to the servers, as an administrator does: the new one is trusted, kube-apiserver gets a
// certificate of it, the old one is trusted no more. The servers go on, and follow.
func (w *world) frontProxy(t *testing.T) {
	file := func(name string) string { return filepath.Join(w.Dir, name) }
	replace := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(file(name)+".new", data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file(name)+".new", file(name)); err != nil {
			t.Fatal(err)
		}
	}
	before := must(os.ReadFile(file("front-proxy-ca.crt")))(t)
	oldProxy := must(tls.LoadX509KeyPair(file("front-proxy-client.crt"), file("front-proxy-client.key")))(t)
	authority := must(pki.NewAuthority("front-proxy of tomorrow", 24*time.Hour))(t)
	cert, key, err := authority.Client("front-proxy-client", nil, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	newProxy := must(tls.X509KeyPair(cert, key))(t)
	// vouch asks a server as a proxy does, for somebody else.
	bundle := must(w.caBundle(t.Context()))(t)
	vouch := func(ctx context.Context, proxy tls.Certificate) error {
		config := &tls.Config{RootCAs: pool(bundle), ServerName: host, Certificates: []tls.Certificate{proxy}}
		var errs []error
		for _, r := range w.servers {
			_, err := w.fetch(ctx, r, config, bundlesURL, "X-Remote-User", "jane", "X-Remote-Group", "system:masters")
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	if err := vouch(t.Context(), oldProxy); err != nil {
		t.Fatalf("kube-apiserver's certificate: %v", err)
	}
	if err := vouch(t.Context(), newProxy); err == nil {
		t.Fatal("a certificate of a CA that nobody knows is taken")
	}
	var pids []int
	for _, r := range w.servers {
		pids = append(pids, r.PID())
	}
	replace("front-proxy-ca.crt", append(before, authority.CertPEM...))
	eventually(t, "the new CA is trusted", func(ctx context.Context) error { return vouch(ctx, newProxy) })
	replace("front-proxy-client.key", key)
	replace("front-proxy-client.crt", cert)
	replace("front-proxy-ca.crt", authority.CertPEM)
	eventually(t, "the old CA is trusted no more", func(ctx context.Context) error {
		// kube-apiserver adds to this what is missing, and leaves it to administrators to take away.
		published, err := w.Kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
		if err != nil {
			return err
		}
		published.Data["requestheader-client-ca-file"] = string(authority.CertPEM)
		if _, err := w.Kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Update(ctx, published, metav1.UpdateOptions{}); err != nil {
			return err
		}
		if err := vouch(ctx, oldProxy); err == nil {
			return errors.New("it is trusted")
		}
		return nil
	})
	eventually(t, "kube-apiserver shows its new certificate", w.available)
	if err := vouch(t.Context(), newProxy); err != nil {
		t.Error(err)
	}
	for i, r := range w.servers {
		if !r.Running() || r.PID() != pids[i] {
			t.Errorf("replica %d did not live through it", i)
		}
	}
}
