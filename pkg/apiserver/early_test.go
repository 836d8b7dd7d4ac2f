// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
)

func TestFailEarly(t *testing.T) {
	object := &genericapirequest.RequestInfo{IsResourceRequest: true, APIGroup: "rukpak.io", APIVersion: "v1alpha1", Resource: "bundles", Subresource: "content", Verb: "get"}
	for name, test := range map[string]struct {
		info    *genericapirequest.RequestInfo
		trouble error
		refused bool
	}{
		"an object":                     {info: object},
		"an object, while etcd is away": {info: object, trouble: errors.New("no leader"), refused: true},
		"discovery, while etcd is away": {info: &genericapirequest.RequestInfo{Path: "/apis"}, trouble: errors.New("no leader")},
		"who knows, while etcd is away": {trouble: errors.New("no leader")},
	} {
		t.Run(name, func(t *testing.T) {
			served := false
			handler := failEarly(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true }), func() error { return test.trouble })
			req := httptest.NewRequest(http.MethodGet, "/", nil)
			if test.info != nil {
				req = req.WithContext(genericapirequest.WithRequestInfo(req.Context(), test.info))
			}
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, req)
			if served == test.refused {
				t.Fatalf("served: %v", served)
			}
			if !test.refused {
				return
			}
			var s metav1.Status
			if err := json.Unmarshal(answer.Body.Bytes(), &s); err != nil {
				t.Fatal(err)
			}
			if answer.Code != http.StatusServiceUnavailable || !strings.Contains(s.Message, "etcd") || !strings.Contains(s.Message, "no leader") {
				t.Errorf("%d: %s", answer.Code, s.Message)
			}
			if answer.Header().Get("Retry-After") == "" || s.Details.RetryAfterSeconds < 1 {
				t.Errorf("it does not say to come again: %v, %+v", answer.Header(), s.Details)
			}
		})
	}
}
