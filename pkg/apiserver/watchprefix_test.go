// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
)

const (
	underWatch = "/apis/rukpak.io/v1alpha1/watch/namespaces/team/bundles/app/content"
	plain      = "/apis/rukpak.io/v1alpha1/namespaces/team/bundles/app/content"
)

// Each request has the RequestInfo that the generic server gives it, which is what was authorized.
func TestWatchPrefix(t *testing.T) {
	infos := &genericapirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	const refused = ""
	for name, test := range map[string]struct {
		method, target string
		served         string // the path that is served, or refused
		allow          string
	}{
		"GET of content":            {"GET", underWatch, plain, ""},
		"HEAD of content":           {"HEAD", underWatch, plain, ""},
		"with a query":              {"GET", underWatch + "?digest=sha256:1", plain, ""},
		"PUT":                       {"PUT", underWatch, refused, "GET, HEAD"},
		"POST":                      {"POST", underWatch, refused, "GET, HEAD"},
		"PATCH":                     {"PATCH", underWatch, refused, "GET, HEAD"},
		"DELETE":                    {"DELETE", underWatch, refused, "GET, HEAD"},
		"another method":            {"PROPFIND", underWatch, refused, "GET, HEAD"},
		"a slash at the end":        {"GET", underWatch + "/", refused, ""},
		"more at the end":           {"GET", underWatch + "/file", refused, ""},
		"a slash twice":             {"GET", "/apis/rukpak.io/v1alpha1/watch//namespaces/team/bundles/app/content", refused, ""},
		"a slash twice, later":      {"GET", "/apis/rukpak.io/v1alpha1/watch/namespaces/team/bundles//app/content", refused, ""},
		"a slash before":            {"GET", "//apis/rukpak.io/v1alpha1/watch/namespaces/team/bundles/app/content", refused, ""},
		"an encoded slash":          {"GET", "/apis/rukpak.io/v1alpha1/watch/namespaces/team/bundles%2Fapp/content", refused, ""},
		"an encoded letter":         {"GET", "/apis/rukpak.io/v1alpha1/watch/namespaces/team/bundles/%61pp/content", refused, ""},
		"the prefix encoded":        {"DELETE", "/apis/rukpak.io/v1alpha1/w%61tch/namespaces/team/bundles/app", refused, ""},
		"dots":                      {"GET", "/apis/rukpak.io/v1alpha1/watch/namespaces/team/bundles/../bundles/app/content", refused, ""},
		"dots above the prefix":     {"DELETE", "/apis/rukpak.io/v1alpha1/watch/../namespaces/team/bundles/app", refused, ""},
		"the status":                {"GET", "/apis/rukpak.io/v1alpha1/watch/namespaces/team/bundles/app/status", refused, ""},
		"the bundle":                {"GET", "/apis/rukpak.io/v1alpha1/watch/namespaces/team/bundles/app", refused, ""},
		"DELETE of the bundle":      {"DELETE", "/apis/rukpak.io/v1alpha1/watch/namespaces/team/bundles/app", refused, ""},
		"the bundles":               {"GET", "/apis/rukpak.io/v1alpha1/watch/namespaces/team/bundles", refused, ""},
		"DELETE of the bundles":     {"DELETE", "/apis/rukpak.io/v1alpha1/watch/namespaces/team/bundles", refused, ""},
		"all bundles":               {"GET", "/apis/rukpak.io/v1alpha1/watch/bundles", refused, ""},
		"no namespace":              {"GET", "/apis/rukpak.io/v1alpha1/watch/bundles/app/content", refused, ""},
		"classes":                   {"GET", "/apis/rukpak.io/v1alpha1/watch/provisionerclasses", refused, ""},
		"POST of a class":           {"POST", "/apis/rukpak.io/v1alpha1/watch/provisionerclasses", refused, ""},
		"content of a class":        {"GET", "/apis/rukpak.io/v1alpha1/watch/namespaces/team/provisionerclasses/app/content", refused, ""},
		"another version":           {"GET", "/apis/rukpak.io/v1/watch/namespaces/team/bundles/app/content", refused, ""},
		"another group":             {"GET", "/apis/apps/v1alpha1/watch/namespaces/team/bundles/app/content", refused, ""},
		"twice":                     {"GET", "/apis/rukpak.io/v1alpha1/watch/watch/namespaces/team/bundles/app/content", refused, ""},
		"another case is no prefix": {"GET", "/apis/rukpak.io/v1alpha1/Watch/namespaces/team/bundles/app/content", "/apis/rukpak.io/v1alpha1/Watch/namespaces/team/bundles/app/content", ""},
		"content":                   {"PUT", plain, plain, ""},
		"a watch":                   {"GET", "/apis/rukpak.io/v1alpha1/bundles?watch=true", "/apis/rukpak.io/v1alpha1/bundles", ""},
		"a namespace of that name":  {"DELETE", "/apis/rukpak.io/v1alpha1/namespaces/watch/bundles/app", "/apis/rukpak.io/v1alpha1/namespaces/watch/bundles/app", ""},
		"discovery":                 {"GET", "/apis/rukpak.io/v1alpha1", "/apis/rukpak.io/v1alpha1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			served := ""
			handler := serveWatchPrefix(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
				served = req.URL.Path
				if req.URL.RawQuery != mustParse(t, test.target).RawQuery {
					t.Errorf("the query is %q", req.URL.RawQuery)
				}
			}))
			req := httptest.NewRequest(test.method, "/", nil)
			req.URL = mustParse(t, test.target)
			info, err := infos.NewRequestInfo(req)
			if err != nil {
				t.Fatal(err)
			}
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, req.WithContext(genericapirequest.WithRequestInfo(t.Context(), info)))
			if served != test.served {
				t.Fatalf("%q was served", served)
			}
			if served != refused {
				return
			}
			allow, sent := answer.Header()["Allow"]
			if answer.Code != http.StatusMethodNotAllowed || !sent || allow[0] != test.allow {
				t.Errorf("%d, Allow: %q", answer.Code, allow)
			}
			var s metav1.Status
			if err := json.Unmarshal(answer.Body.Bytes(), &s); err != nil || s.Reason != metav1.StatusReasonMethodNotAllowed {
				t.Errorf("%s: %v", answer.Body, err)
			}
		})
	}
}

func mustParse(t *testing.T, target string) *url.URL {
	t.Helper()
	// As net/http parses the target of a request: two slashes at the start are no host.
	u, err := url.ParseRequestURI(target)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestWatchPrefixWithoutRequestInfo(t *testing.T) {
	served := false
	serveWatchPrefix(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true })).
		ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", underWatch, nil))
	if !served {
		t.Error("the next handler was not asked")
	}
}
