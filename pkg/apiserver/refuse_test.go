// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"rukpak.io/apiserver/pkg/content/instance"
)

// gate is a gate with these errors.
type gate struct{ err, confirm error }

func (g gate) Err() error { return g.err }

func (g gate) Confirm(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return g.confirm
}

func TestRefuse(t *testing.T) {
	object := &genericapirequest.RequestInfo{IsResourceRequest: true, APIGroup: "rukpak.io", APIVersion: "v1alpha1", Resource: "bundles", Verb: "get"}
	watch := *object
	watch.Verb = "watch"
	wrong := &instance.Disagreement{Token: "0123", Since: time.Unix(0, 0), Findings: []instance.Finding{
		{Place: "store/default", Reason: instance.Foreign, Message: "the store is another's"},
		{Place: "cluster", Reason: instance.EtcdOlder, Message: "etcd is old"},
	}}
	for name, test := range map[string]struct {
		info *genericapirequest.RequestInfo
		gate gate
		code int // of what is served without the gate
		want int
	}{
		"an object":                               {info: object, code: 200, want: 200},
		"an object that is not there":             {info: object, code: 404, want: 404},
		"a failure":                               {info: object, gate: gate{confirm: wrong}, code: 409, want: 409},
		"an object, from a wrong etcd":            {info: object, gate: gate{err: wrong}, code: 200, want: 503},
		"a watch, from a wrong etcd":              {info: &watch, gate: gate{err: wrong}, code: 200, want: 503},
		"an object that a wrong etcd has not":     {info: object, gate: gate{confirm: wrong}, code: 404, want: 503},
		"discovery, with a wrong etcd":            {info: &genericapirequest.RequestInfo{Path: "/apis"}, gate: gate{err: wrong}, code: 200, want: 200},
		"an unknown path, with a wrong etcd":      {info: &genericapirequest.RequestInfo{Path: "/nowhere"}, gate: gate{confirm: wrong}, code: 404, want: 404},
		"a request that nobody knows anything of": {gate: gate{err: wrong}, code: 200, want: 200},
	} {
		t.Run(name, func(t *testing.T) {
			req := httptest.NewRequest(http.MethodGet, "/", nil)
			if test.info != nil {
				req = req.WithContext(genericapirequest.WithRequestInfo(req.Context(), test.info))
			}
			answer := httptest.NewRecorder()
			refuse(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "4")
				w.WriteHeader(test.code)
				_, _ = w.Write([]byte("body"))
			}), test.gate).ServeHTTP(answer, req)
			if answer.Code != test.want {
				t.Fatalf("%d: %s", answer.Code, answer.Body)
			}
			if test.want != http.StatusServiceUnavailable {
				if answer.Body.String() != "body" {
					t.Errorf("served: %s", answer.Body)
				}
				return
			}
			var s metav1.Status
			if err := json.Unmarshal(answer.Body.Bytes(), &s); err != nil {
				t.Fatalf("%v: %s", err, answer.Body)
			}
			if !strings.Contains(s.Message, "--accept-data-loss=0123") || s.Details.RetryAfterSeconds < 1 || answer.Header().Get("Retry-After") == "" {
				t.Errorf("%+v, %v", s, answer.Header())
			}
			want := metav1.StatusCause{Type: CauseInstanceMismatch, Field: "store/default", Message: "Foreign: the store is another's"}
			if len(s.Details.Causes) != 2 || !slices.Contains(s.Details.Causes, want) {
				t.Errorf("causes: %+v", s.Details.Causes)
			}
		})
	}
}

func TestRefuseBeforeItIsKnown(t *testing.T) {
	object := &genericapirequest.RequestInfo{IsResourceRequest: true, APIGroup: "rukpak.io", APIVersion: "v1alpha1", Resource: "bundles", Verb: "get"}
	req := httptest.NewRequest(http.MethodGet, "/", nil)
	req = req.WithContext(genericapirequest.WithRequestInfo(req.Context(), object))
	answer := httptest.NewRecorder()
	refuse(http.NotFoundHandler(), gate{err: &instance.Unverified{Err: errors.New("the store is away")}}).ServeHTTP(answer, req)
	if answer.Code != http.StatusServiceUnavailable || !strings.Contains(answer.Body.String(), "the store is away") {
		t.Errorf("%d: %s", answer.Code, answer.Body)
	}
}

// net/http ends the context of a request whose body does not come. What is not there is not there all the same.
func TestRefuseConfirmsAfterTheBodyBroke(t *testing.T) {
	object := &genericapirequest.RequestInfo{IsResourceRequest: true, APIGroup: "rukpak.io", APIVersion: "v1alpha1", Resource: "bundles", Verb: "get"}
	ctx, cancel := context.WithCancel(genericapirequest.WithRequestInfo(t.Context(), object))
	cancel()
	answer := httptest.NewRecorder()
	refuse(http.NotFoundHandler(), gate{}).ServeHTTP(answer, httptest.NewRequest(http.MethodPut, "/", nil).WithContext(ctx))
	if answer.Code != http.StatusNotFound {
		t.Errorf("%d: %s", answer.Code, answer.Body)
	}
}
