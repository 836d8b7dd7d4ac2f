// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rukpak.io/apiserver/pkg/pki"
	"rukpak.io/apiserver/test/integration/harness"
)

const (
	// etcdTries is how often etcd is started on another port, when somebody was quicker to take one.
	etcdTries = 3
	// etcdAnswers is how long one request to it may take.
	etcdAnswers = 5 * time.Second
)

// startEtcd runs an etcd beside the cluster, on an address of the node that pods reach, and makes the Secret for the server.
// It returns the etcd's URL once it answers, and ends it with the test.
func startEtcd(t *testing.T, namespace string) string {
	t.Helper()
	node := net.ParseIP(strings.TrimSpace(kubectl(t, "get", "nodes", "-o", `jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}`)))
	authority, err := pki.NewAuthority("etcd", validity)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := authority.Peer(nil, []net.IP{node}, validity)
	if err != nil {
		t.Fatal(err)
	}
	clientCert, clientKey, err := authority.Client("rukpak-apiserver", nil, validity)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(clientCert, clientKey)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority.Certificate())
	config := &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}

	newSecret(t, namespace, "rukpak-etcd-client", map[string][]byte{"ca.crt": authority.CertPEM, "tls.crt": clientCert, "tls.key": clientKey})
	for try := 1; ; try++ {
		url := freeURL(t, node)
		etcd := beginEtcd(t, url, map[string][]byte{"ca.crt": authority.CertPEM, "tls.crt": cert, "tls.key": key})
		until(t, func() error {
			if !etcd.Running() {
				return nil
			}
			ctx, cancel := context.WithTimeout(t.Context(), etcdAnswers)
			defer cancel()
			if err := harness.Probe(ctx, url+"/health", config); err != nil {
				return fmt.Errorf("etcd does not answer: %w: %s", err, etcd.Log())
			}
			return nil
		})
		switch {
		case etcd.Running():
			return url
		case try == etcdTries || !strings.Contains(etcd.Log(), "address already in use"):
			t.Fatalf("etcd ended: %s", etcd.Log())
		}
	}
}

// freeURL has a port on which nobody listens now. Before it is used somebody else may take it.
func freeURL(t *testing.T, node net.IP) string {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(node.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return "https://" + listener.Addr().String()
}

// beginEtcd starts an etcd with a certificate, and does not wait for it.
func beginEtcd(t *testing.T, url string, files map[string][]byte) *harness.Process {
	t.Helper()
	dir := t.TempDir()
	writeFiles(t, dir, files)
	program, err := exec.LookPath("etcd")
	if err != nil {
		t.Fatal(err)
	}
	etcd, err := harness.StartProgram("etcd", filepath.Join(dir, "log"), program, nil,
		"--data-dir="+filepath.Join(dir, "data"), "--listen-client-urls="+url, "--advertise-client-urls="+url,
		"--listen-peer-urls=http://127.0.0.1:0", "--log-level=warn", "--client-cert-auth",
		"--trusted-ca-file="+filepath.Join(dir, "ca.crt"), "--cert-file="+filepath.Join(dir, "tls.crt"), "--key-file="+filepath.Join(dir, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := etcd.Kill(); err != nil {
			t.Error(err)
		}
	})
	return etcd
}

func newSecret(t *testing.T, namespace, name string, files map[string][]byte) {
	t.Helper()
	dir := t.TempDir()
	writeFiles(t, dir, files)
	kubectl(t, "create", "secret", "generic", name, "-n", namespace, "--from-file="+dir)
}

func writeFiles(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
