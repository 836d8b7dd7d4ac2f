// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"crypto/tls"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/test/integration/harness"
)

// TestReadyServerKnowsClientCertificates asks a server for something as soon as it answers at all. A server that does not
// know yet who signs the certificates of clients, of kube-apiserver among them, fails requests of a rolling update.
func TestReadyServerKnowsClientCertificates(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	must(shared.Kube.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: harness.ServiceName}}, metav1.CreateOptions{}))(t)
	copyPermissions(t, namespace, "resourcequotas")
	s := must(shared.Server(t.Context(), t.TempDir(), harness.ServerOptions{Namespace: namespace, ServiceAccount: harness.ServiceName}))(t)
	pair := must(tls.X509KeyPair(shared.Config.CertData, shared.Config.KeyData))(t)
	for range 3 {
		if err := s.StartAlive(t.Context()); err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.Authority(), Certificates: []tls.Certificate{pair}}}
		resp := must((&http.Client{Transport: transport}).Get(s.URL + "/apis"))(t)
		if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("GET /apis: %s, %v", resp.Status, err)
		}
		transport.CloseIdleConnections()
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
	}
}
