// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
)

func TestMethodsOfSubresources(t *testing.T) {
	infos := &genericapirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	const (
		bundle  = "/apis/rukpak.io/v1alpha1/namespaces/team/bundles/app"
		ofAll   = "GET, HEAD, PUT"
		ofFile  = "GET, HEAD"
		ofList  = "GET, HEAD, POST"
		ofOne   = "GET, HEAD, PATCH, DELETE"
		allowed = "" // all are passed on
	)
	for _, test := range []struct {
		methods, path, want string
	}{
		{"GET HEAD PUT", bundle + "/content", allowed},
		{"POST PATCH DELETE OPTIONS TRACE BREW", bundle + "/content", ofAll},
		{"POST DELETE", bundle + "/content/", ofFile},
		{"PUT OPTIONS", bundle + "/uploads/", ofList},
		{"GET HEAD PUT", bundle + "/content/a/b", allowed}, // which the subresource answers itself, as the next
		{"POST PATCH DELETE OPTIONS", bundle + "/content/a/b", ofFile},
		{"GET HEAD POST PATCH DELETE", bundle + "/uploads", allowed},
		{"PUT OPTIONS BREW", bundle + "/uploads", ofList},
		{"GET HEAD POST PATCH DELETE", bundle + "/uploads/id", allowed},
		{"PUT OPTIONS", bundle + "/uploads/id", ofOne},
		{"GET PUT PATCH POST DELETE OPTIONS", bundle + "/status", allowed},
		{"GET PUT PATCH POST DELETE OPTIONS", bundle, allowed},
		{"POST", "/apis/rukpak.io/v1alpha1/bundles/app/content", allowed},
		{"POST", "/apis/rukpak.io/v1alpha1/namespaces/team/provisionerclasses/app/content", allowed},
		{"POST", "/apis/rukpak.io/v2/namespaces/team/bundles/app/content", allowed},
		{"POST", "/apis/example.com/v1alpha1/namespaces/team/bundles/app/content", allowed},
		{"POST", "/content", allowed},
	} {
		for method := range strings.FieldsSeq(test.methods) {
			passed := false
			handler := refuseMethods(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed = true }))
			req := httptest.NewRequest(method, test.path, strings.NewReader("a body"))
			info, err := infos.NewRequestInfo(req)
			if err != nil {
				t.Fatal(err)
			}
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, req.WithContext(genericapirequest.WithRequestInfo(t.Context(), info)))
			if passed != (test.want == allowed) {
				t.Errorf("%s %s is passed on: %t", method, test.path, passed)
			}
			if passed {
				continue
			}
			var s metav1.Status
			if err := json.Unmarshal(answer.Body.Bytes(), &s); err != nil {
				t.Fatalf("%s %s: %s: %v", method, test.path, answer.Body, err)
			}
			if answer.Code != http.StatusMethodNotAllowed || answer.Header().Get("Allow") != test.want || s.Reason != metav1.StatusReasonMethodNotAllowed ||
				!strings.HasPrefix(s.Message, method) || !strings.HasSuffix(s.Message, test.want) {
				t.Errorf("%s %s: %d %v %+v", method, test.path, answer.Code, answer.Header(), s)
			}
			if n, _ := req.Body.Read(make([]byte, 1)); n > 0 {
				t.Errorf("%s %s: the body was not read", method, test.path)
			}
		}
	}
}
