// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

func TestWhoReadsContent(t *testing.T) {
	s := store(t, "raw", noise("secret", 7, 1000))
	create(t, s.namespace, uploadBundle("other", "raw"))
	named := rule("bundles/content", "get")
	named.ResourceNames = []string{s.name}
	elsewhere := newNamespace(t)
	all := []rbacv1.PolicyRule{rule("*", "*")}
	for _, test := range []struct {
		name  string
		user  user
		codes []int // of this bundle's content, and of another's in the same namespace
	}{
		{"nothing granted", newUser(t, s.namespace), []int{403, 403}},
		{"bundles alone", newUser(t, s.namespace, rule("bundles", "get", "list", "watch", "update", "patch", "create", "delete")), []int{403, 403}},
		{"status alone", newUser(t, s.namespace, rule("bundles/status", "get", "update", "patch")), []int{403, 403}},
		{"writing alone", newUser(t, s.namespace, rule("bundles/content", "update")), []int{403, 403}},
		{"another verb", newUser(t, s.namespace, rule("bundles/content", "list", "create", "patch")), []int{403, 403}},
		{"everything elsewhere", newUser(t, elsewhere, all...), []int{403, 403}},
		{"this name", newUser(t, s.namespace, named), []int{200, 403}},
		{"this namespace", newUser(t, s.namespace, rule("bundles/content", "get")), []int{200, 409}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, w := range bothWays(t) {
				for _, method := range []string{http.MethodGet, http.MethodHead} {
					for i, name := range []string{s.name, "other"} {
						r := w.do(t, method, contentPath(s.namespace, name), test.user.token, nil, "Range", "bytes=0-9")
						want := test.codes[i]
						if want == 200 && method == http.MethodGet { // a HEAD knows no ranges
							want = http.StatusPartialContent
						}
						if r.code != want {
							t.Errorf("%s: %s of %q is answered with %d, want %d: %s", w.name, method, name, r.code, want, short(r.body))
						}
						if r.code >= 400 && (r.header.Get("ETag") != "" || strings.Contains(string(r.body), digestOf(s.content))) {
							t.Errorf("%s: the refusal tells the digest", w.name)
						}
					}
				}
			}
		})
	}
}

func TestWhoWritesContent(t *testing.T) {
	s := store(t, "raw", noise("data", 8, 1000))
	elsewhere := newNamespace(t)
	next := canonical(t, noise("data", 9, 1000))
	for name, u := range map[string]user{
		"nothing granted":      newUser(t, s.namespace),
		"reading alone":        newUser(t, s.namespace, rule("bundles/content", "get", "create", "patch")),
		"bundles alone":        newUser(t, s.namespace, rule("bundles", "*"), rule("bundles/status", "*")),
		"everything elsewhere": newUser(t, elsewhere, rule("*", "*")),
	} {
		t.Run(name, func(t *testing.T) {
			for _, w := range bothWays(t) {
				w.do(t, http.MethodPut, s.path(), u.token, bytes.NewReader(next)).expect(t, http.StatusForbidden)
				s.unchanged(t, w)
			}
		})
	}
}

func TestNothingIsAnsweredWithoutACredential(t *testing.T) {
	s := store(t, "raw", noise("secret", 10, 1000))
	base := strings.TrimSuffix(s.path(), "/content")
	paths := []string{
		s.path(), base, base + "/status", "/apis/rukpak.io/v1alpha1/bundles", "/apis/rukpak.io/v1alpha1/provisionerclasses",
		"/", "/api", "/apis", "/apis/", "/apis/rukpak.io", "/apis/rukpak.io/v1alpha1", "/openapi/v2", "/openapi/v3", "/openapi/v3/apis/rukpak.io/v1alpha1",
		"/metrics", "/metrics/slis", "/version", "/debug/pprof/", "/debug/pprof/heap", "/debug/flags/v", "/configz", "/flagz", "/statusz",
		"/livez/ping", "/readyz/ping", "/healthz/ping", "/livez/../metrics", "//metrics", "/no/such/path",
		"/apis/rukpak.io/v1alpha1/watch", "/apis/rukpak.io/v1alpha1/watch/",
		"/apis/rukpak.io/v1alpha1/watch/namespaces/" + s.namespace + "/bundles/" + s.name + "/content",
	}
	methods := []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodPost, http.MethodPatch, http.MethodDelete, http.MethodOptions}
	for name, headers := range map[string][]string{
		"nobody":          nil,
		"anonymous":       {"X-Remote-User", "system:anonymous"},
		"a claim":         {"X-Remote-User", "admin", "X-Remote-Group", "system:masters"},
		"an impersonator": {"Impersonate-User", "admin", "Impersonate-Group", "system:masters"},
		"a wrong token":   {"Authorization", "Bearer wrong"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, path := range paths {
				for _, method := range methods {
					r := direct(t).do(t, method, path, "", strings.NewReader(""), headers...)
					if r.code != http.StatusUnauthorized {
						t.Errorf("%s %s is answered with %d: %s", method, path, r.code, short(r.body))
					}
				}
			}
			r := aggregated(t).do(t, http.MethodGet, s.path(), "", nil, headers...)
			if r.code != http.StatusUnauthorized && r.code != http.StatusForbidden {
				t.Errorf("through kube-apiserver content is answered with %d", r.code)
			}
		})
	}
	for _, path := range []string{"/livez", "/readyz", "/healthz"} {
		if r := direct(t).do(t, http.MethodGet, path, "", nil).expect(t, http.StatusOK); string(r.body) != "ok" {
			t.Errorf("%s says more than ok: %s", path, short(r.body))
		}
	}
}

func TestOtherPathsNeedAGrant(t *testing.T) {
	u := newUser(t, newNamespace(t))
	for _, path := range []string{"/metrics", "/debug/pprof/", "/apis/rukpak.io/v1alpha1/bundles"} {
		direct(t).do(t, http.MethodGet, path, u.token, nil).expect(t, http.StatusForbidden)
	}
	// As with every API server whoever has logged in may discover.
	for _, path := range []string{"/apis", "/apis/rukpak.io/v1alpha1", "/openapi/v3", "/version"} {
		direct(t).do(t, http.MethodGet, path, u.token, nil).expect(t, http.StatusOK)
	}
}
