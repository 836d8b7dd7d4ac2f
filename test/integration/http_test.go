// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"rukpak.io/apiserver/test/integration/harness"
)

// requestTimeout bounds one request. kube-apiserver ends those of ours after 60 s.
const requestTimeout = 70 * time.Second

// way is a way to our server's API.
type way struct {
	name, url string
	client    *http.Client
}

// aggregated leads through kube-apiserver.
func aggregated(*testing.T) way { return newWay("aggregated", shared.URL, shared.CA) }

// direct leads to our server's own port.
func direct(t *testing.T) way {
	t.Helper()
	return newWay("direct", shared.server.URL, serverAuthority(t))
}

// bothWays are the two.
func bothWays(t *testing.T) []way {
	t.Helper()
	return []way{aggregated(t), direct(t)}
}

func newWay(name, url string, ca []byte) way {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return way{name: name, url: url, client: &http.Client{
		Timeout: requestTimeout,
		// No compression that was not asked for, and nobody follows a redirect in silence.
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableCompression: true, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// serverAuthority is what the APIService trusts: the server itself has set it.
func serverAuthority(t *testing.T) []byte {
	t.Helper()
	client := must(dynamic.NewForConfig(shared.Config))(t)
	obj := must(client.Resource(harness.APIServices).Get(t.Context(), harness.APIServiceName, metav1.GetOptions{}))(t)
	encoded, _, _ := unstructured.NestedString(obj.Object, "spec", "caBundle")
	ca := must(base64.StdEncoding.DecodeString(encoded))(t)
	if len(ca) == 0 {
		t.Fatal("the server has not set the caBundle of its APIService")
	}
	return ca
}

// reply is a response, read to its end.
type reply struct {
	code   int
	header http.Header
	body   []byte
}

// do sends a request. Headers are names and values in turn.
func (w way) do(t *testing.T, method, path, token string, body io.Reader, headers ...string) reply {
	t.Helper()
	req := must(http.NewRequestWithContext(t.Context(), method, w.url+path, body))(t)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := w.client.Do(req)
	if err != nil {
		t.Fatalf("%s %s (%s): %v", method, path, w.name, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s (%s): read the response: %v", method, path, w.name, err)
	}
	return reply{resp.StatusCode, resp.Header, raw}
}

// expect fails unless the reply has a code, and its body all of the texts.
func (r reply) expect(t *testing.T, code int, texts ...string) reply {
	t.Helper()
	if r.code != code {
		t.Fatalf("answer is %d, want %d: %s", r.code, code, short(r.body))
	}
	for _, text := range texts {
		if !strings.Contains(string(r.body), text) {
			t.Errorf("answer %d does not say %q: %s", r.code, text, short(r.body))
		}
	}
	return r
}

// status decodes a reply that is a Status.
func (r reply) status(t *testing.T) metav1.Status {
	t.Helper()
	var s metav1.Status
	if err := json.Unmarshal(r.body, &s); err != nil || s.Kind != "Status" {
		t.Fatalf("answer %d is no Status: %v: %s", r.code, err, short(r.body))
	}
	return s
}

func short(b []byte) string {
	if len(b) > 600 {
		return string(b[:600]) + "..."
	}
	return string(b)
}

func contentPath(namespace, name string) string {
	return "/apis/rukpak.io/v1alpha1/namespaces/" + namespace + "/bundles/" + name + "/content"
}

// podToken is what a kubelet would mount into a pod.
func podToken(t *testing.T, namespace, account, pod string, uid types.UID) string {
	t.Helper()
	return newToken(t, namespace, account, authenticationv1.TokenRequestSpec{
		Audiences:      []string{harness.TokenAudience},
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod, UID: uid},
	})
}
