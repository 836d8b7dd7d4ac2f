// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
)

// account makes a service account that has a grant, if any, in the test's namespace.
func (s *scope) account(namespace, name string, rules ...rbacv1.PolicyRule) {
	s.Helper()
	_, err := s.kube.CoreV1().ServiceAccounts(namespace).Create(s.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	s.must(err)
	if len(rules) == 0 {
		return
	}
	_, err = s.kube.RbacV1().Roles(namespace).Create(s.ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, metav1.CreateOptions{})
	s.must(err)
	_, err = s.kube.RbacV1().RoleBindings(namespace).Create(s.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
	}, metav1.CreateOptions{})
	s.must(err)
}

// token asks for a token of a service account, bound to a pod if one is given. Without an audience
// it is one for kube-apiserver.
func (s *scope) token(namespace, account, audience string, bound *corev1.Pod) string {
	s.Helper()
	request := &authenticationv1.TokenRequest{}
	if audience != "" {
		request.Spec.Audiences = []string{audience}
	}
	if bound != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: bound.Name, UID: bound.UID}
	}
	made, err := s.kube.CoreV1().ServiceAccounts(namespace).CreateToken(s.ctx, account, request, metav1.CreateOptions{})
	s.must(err)
	return made.Status.Token
}

// clusterClient sends requests to kube-apiserver with a bearer token or, if that is empty, without a credential.
func (s *scope) clusterClient(token string) *http.Client {
	s.Helper()
	config := rest.AnonymousClientConfig(s.config)
	config.BearerToken = token
	client, err := rest.HTTPClientFor(config)
	s.must(err)
	return client
}

func TestAccessToContent(t *testing.T) {
	t.Parallel()
	s := begin(t)
	elsewhere := s.ns + "-b"
	s.makeNamespace(elsewhere)
	tree := small(s.ns)
	digest, _ := s.push("v1", tree)
	s.bundle("app", "plain", digest)
	s.bundle("other", "plain", digest)
	want := s.unpacked("app")
	s.unpacked("other")
	whole, err := s.read("app", "")
	s.must(err)

	rule := func(resource, name string, verbs ...string) rbacv1.PolicyRule {
		r := rbacv1.PolicyRule{APIGroups: []string{v1alpha1.GroupName}, Resources: []string{resource}, Verbs: verbs}
		if name != "" {
			r.ResourceNames = []string{name}
		}
		return r
	}
	s.account(s.ns, "nobody")
	s.account(s.ns, "viewer", rule("bundles", "", "get", "list", "watch"))
	s.account(s.ns, "reader", rule("bundles/content", "app", "get"))
	s.account(s.ns, "writer", rule("bundles/content", "", "update"), rule("bundles/status", "", "update", "patch"))
	s.account(elsewhere, "stranger", rule("bundles/content", "", "get", "update", "watch"), rule("bundles", "", "get"))

	service := s.service()
	for _, c := range []struct {
		namespace, account, method, bundle string
		code                               int
	}{
		{s.ns, "nobody", http.MethodGet, "app", http.StatusForbidden},
		{s.ns, "nobody", http.MethodHead, "app", http.StatusForbidden},
		{s.ns, "viewer", http.MethodGet, "app", http.StatusForbidden},
		{s.ns, "writer", http.MethodGet, "app", http.StatusForbidden},
		{s.ns, "reader", http.MethodGet, "app", http.StatusOK},
		{s.ns, "reader", http.MethodGet, "other", http.StatusForbidden},
		{s.ns, "reader", http.MethodPut, "app", http.StatusForbidden},
		{elsewhere, "stranger", http.MethodGet, "app", http.StatusForbidden},
		// The content of an image is its pod's to write, whatever a role says.
		{s.ns, "writer", http.MethodPut, "app", http.StatusForbidden},
	} {
		for way, door := range map[string]struct{ audience, url string }{
			"through kube-apiserver": {"", s.config.Host},
			"at the Service":         {v1alpha1.TokenAudience, service.url},
		} {
			token := s.token(c.namespace, c.account, door.audience, nil)
			client := s.clusterClient(token)
			if door.audience != "" {
				client = service.client(token)
			}
			t.Run(fmt.Sprintf("%s %s %s %s", c.account, c.method, c.bundle, way), func(t *testing.T) {
				s := s.in(t)
				var code int
				var data []byte
				s.eventually("an answer that is no error of the server", func() (err error) {
					code, data, err = ask(s.ctx, client, c.method, door.url+contentPath(s.ns, c.bundle), bytes.NewReader(whole))
					if err == nil && (code >= http.StatusInternalServerError || code == http.StatusTooManyRequests) {
						return fmt.Errorf("status %d: %s", code, data)
					}
					return err
				})
				if code != c.code {
					t.Fatalf("status %d, want %d: %.300s", code, c.code, data)
				}
				if code == http.StatusOK && !bytes.Equal(data, whole) {
					t.Error("other bytes than the administrator reads")
				}
			})
		}
	}
	s.anonymousThroughCluster()
	if now := s.unpacked("app"); now.Status.Content.Digest != want.Status.Content.Digest {
		t.Error("the content has changed")
	}
}

// anonymousThroughCluster checks that nobody reads content through kube-apiserver.
func (s *scope) anonymousThroughCluster() {
	s.Helper()
	code, _, err := ask(s.ctx, s.clusterClient(""), http.MethodGet, s.config.Host+contentPath(s.ns, "app"), nil)
	s.must(err)
	if code != http.StatusUnauthorized && code != http.StatusForbidden {
		s.Errorf("without a credential kube-apiserver answers %d", code)
	}
}

// TestNoPortAnswersWithoutCredential probes every port that the server's pod listens at.
func TestNoPortAnswersWithoutCredential(t *testing.T) {
	t.Parallel()
	s := begin(t)
	tree := small(s.ns)
	digest, _ := s.push("v1", tree)
	s.bundle("app", "plain", digest)
	s.unpacked("app")
	var pid int
	var server *corev1.Pod
	s.eventually("the server's process", func() (err error) {
		if server, err = s.kube.CoreV1().Pods(serverNamespace).Get(s.ctx, serverPod, metav1.GetOptions{}); err != nil {
			return err
		}
		pid, err = s.process()
		return err
	})
	ports := s.listening(pid)
	if !slices.Equal(ports, []string{"10250"}) {
		t.Errorf("the pod listens at %v, want 10250 alone", ports)
	}
	// Who listens does so on every address, so that the pod's own is as good as any.
	for _, port := range ports {
		s.probe(net.JoinHostPort(server.Status.PodIP, port))
	}
}

// listening lists the ports that are listened at, over TCP, in the network of a process.
func (s *scope) listening(pid int) []string {
	s.Helper()
	const local, state, listens = 1, 3, "0A"
	ports := map[string]bool{}
	for _, table := range []string{"tcp", "tcp6"} {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		s.must(err)
		for line := range strings.Lines(string(data)) {
			fields := strings.Fields(line)
			if len(fields) <= state || fields[state] != listens {
				continue
			}
			_, port, _ := strings.Cut(fields[local], ":")
			raw, err := hex.DecodeString(port)
			s.must(err)
			ports[strconv.Itoa(int(raw[0])<<8|int(raw[1]))] = true
		}
	}
	var sorted []string
	for port := range ports {
		sorted = append(sorted, port)
	}
	slices.Sort(sorted)
	return sorted
}

// probe asks an address for everything that an API server has, without a credential.
func (s *scope) probe(address string) {
	s.Helper()
	client := &http.Client{Transport: &http.Transport{
		// It matters here what is answered, not who answers.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	content := contentPath(s.ns, "app")
	for _, path := range []string{
		"/", "/api", "/apis", "/apis/rukpak.io", "/apis/rukpak.io/v1alpha1", "/apis/rukpak.io/v1alpha1/bundles",
		content, content + "?digest=x", strings.Replace(content, "/namespaces/", "/watch/namespaces/", 1), strings.TrimSuffix(content, "/content"),
		"/openapi/v2", "/openapi/v3", "/version", "/metrics", "/metrics/slis", "/configz", "/flagz", "/statusz", "/logs", "/debug/pprof/", "/debug/flags/v",
		"/livez/ping", "/readyz/etcd", "/healthz/", "/livez/../apis", "/readyz%2f..%2fmetrics", "//metrics", "/healthz/etcd",
		"/members", "/health", "/v3/kv/range", "/raft", "/v2/keys",
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodPost, http.MethodDelete, http.MethodOptions} {
			code, data, err := ask(s.ctx, client, method, "https://"+address+path, nil)
			if err != nil {
				s.Errorf("%s %s: %v", method, path, err)
				continue
			}
			if code != http.StatusUnauthorized {
				s.Errorf("without a credential %s %s at %s answers %d: %.200s", method, path, address, code, data)
			}
		}
	}
	for _, path := range []string{"/livez", "/readyz", "/healthz"} {
		code, data, err := ask(s.ctx, client, http.MethodGet, "https://"+address+path, nil)
		if err != nil || code != http.StatusOK || string(data) != "ok" {
			s.Errorf("%s at %s answers %d, %q, %v", path, address, code, data, err)
		}
	}
	if code, data, err := ask(s.ctx, http.DefaultClient, http.MethodGet, "http://"+address+content, nil); err == nil && code != http.StatusBadRequest {
		s.Errorf("without TLS %s answers %d: %.200s", address, code, data)
	}
}
