// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/pki"
	"rukpak.io/apiserver/test/integration/harness"
)

// interceptPods calls once, with the first pod that our server makes in a namespace, while kube-apiserver waits.
func interceptPods(t *testing.T, namespace string, once func(*corev1.Pod)) {
	t.Helper()
	var first sync.Once
	hook := newWebhook(t, func(review *admissionv1.AdmissionRequest) error {
		if !strings.HasPrefix(review.UserInfo.Username, "system:serviceaccount:"+harness.SystemNamespace+":") {
			return nil
		}
		pod := &corev1.Pod{}
		if err := json.Unmarshal(review.Object.Raw, pod); err != nil {
			return err
		}
		if review.DryRun == nil || !*review.DryRun {
			first.Do(func() { once(pod) })
		}
		return nil
	})
	configs := shared.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	config := must(configs.Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "intercept-"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "pods.integration.test", ClientConfig: hook, AdmissionReviewVersions: []string{"v1"},
			SideEffects:       ptr.To(admissionregistrationv1.SideEffectClassNoneOnDryRun),
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
		}},
	}, metav1.CreateOptions{}))(t)
	// The context of the test has ended by then.
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		if err := configs.Delete(ctx, config.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	awaitWebhook(t, namespace)
}

// awaitWebhook waits until kube-apiserver asks the webhook: it then warns that the pod was seen.
func awaitWebhook(t *testing.T, namespace string) {
	t.Helper()
	eventually(t, "webhook is asked", func() string {
		_, stderr, err := kubectl(t, "", "run", "probe", "-n", namespace, "--image=registry.invalid/probe", "--dry-run=server")
		if err == nil && !strings.Contains(stderr, webhookWarning) {
			return "it is not"
		}
		return problem(err)
	})
}

const webhookWarning = "the webhook of the test was asked"

// newWebhook serves an admission webhook that lets everything through unless look fails.
func newWebhook(t *testing.T, look func(*admissionv1.AdmissionRequest) error) admissionregistrationv1.WebhookClientConfig {
	t.Helper()
	authority := must(pki.NewAuthority("webhook", time.Hour))(t)
	cert, key, err := authority.Serving([]string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair := must(tls.X509KeyPair(cert, key))(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "no AdmissionReview", http.StatusBadRequest)
			return
		}
		if err := look(review.Request); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true, Warnings: []string{webhookWarning}}
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Errorf("answer of the webhook: %v", err)
		}
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return admissionregistrationv1.WebhookClientConfig{URL: ptr.To(server.URL), CABundle: authority.CertPEM}
}
