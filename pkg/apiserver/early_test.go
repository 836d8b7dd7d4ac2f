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

// away is an etcd with this trouble.
type away struct{ err error }

func (a away) Err() error { return a.err }

func (a away) Broken() <-chan struct{} {
	c := make(chan struct{})
	if a.err != nil {
		close(c)
	}
	return c
}

func TestFailEarly(t *testing.T) {
	object := &genericapirequest.RequestInfo{IsResourceRequest: true, APIGroup: "rukpak.io", APIVersion: "v1alpha1", Resource: "bundles", Subresource: "content", Verb: "get"}
	for name, test := range map[string]struct {
		info    *genericapirequest.RequestInfo
		trouble error
		refused bool
	}{
		"an object":                                {info: object},
		"an object, while etcd is away":            {info: object, trouble: errors.New("no leader"), refused: true},
		"content below watch/, while etcd is away": {info: &genericapirequest.RequestInfo{IsResourceRequest: true, APIGroup: "rukpak.io", APIVersion: "v1alpha1", Resource: "bundles", Subresource: "content", Verb: "watch"}, trouble: errors.New("no leader"), refused: true},
		"discovery, while etcd is away":            {info: &genericapirequest.RequestInfo{Path: "/apis"}, trouble: errors.New("no leader")},
		"who knows, while etcd is away":            {trouble: errors.New("no leader")},
	} {
		t.Run(name, func(t *testing.T) {
			served := false
			handler := failEarly(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true }), away{test.trouble})
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

// leaving is an etcd that goes away when it is told to.
type leaving struct {
	gone   chan struct{}
	reason error
}

func (l leaving) Err() error {
	select {
	case <-l.gone:
		return l.reason
	default:
		return nil
	}
}

func (l leaving) Broken() <-chan struct{} { return l.gone }

// A request that waits for etcd when that goes away ends, with an answer that says so; content that is on its way, and a
// failure that has another cause, stay what they are.
func TestEtcdGoesAwayMeanwhile(t *testing.T) {
	for name, test := range map[string]struct {
		subresource string
		serve       func(http.ResponseWriter, *http.Request, leaving)
		code        int
		says        string
	}{
		"waits": {
			serve: func(w http.ResponseWriter, req *http.Request, l leaving) {
				close(l.gone)
				<-req.Context().Done()
				http.Error(w, "context canceled", http.StatusInternalServerError)
			},
			code: http.StatusServiceUnavailable, says: "no leader",
		},
		"sends content": {
			subresource: "content",
			serve: func(w http.ResponseWriter, req *http.Request, l leaving) {
				close(l.gone)
				if req.Context().Err() == nil {
					_, _ = w.Write([]byte("bytes"))
				}
			},
			code: http.StatusOK, says: "bytes",
		},
		"fails for another reason": {
			serve: func(w http.ResponseWriter, _ *http.Request, _ leaving) {
				http.Error(w, "out of cheese", http.StatusInternalServerError)
			},
			code: http.StatusInternalServerError, says: "cheese",
		},
		"is refused": {
			serve: func(w http.ResponseWriter, _ *http.Request, l leaving) {
				close(l.gone)
				http.Error(w, "forbidden fruit", http.StatusForbidden)
			},
			code: http.StatusForbidden, says: "fruit",
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := leaving{gone: make(chan struct{}), reason: errors.New("no leader")}
			info := &genericapirequest.RequestInfo{IsResourceRequest: true, APIGroup: "rukpak.io", APIVersion: "v1alpha1", Resource: "bundles", Subresource: test.subresource, Verb: "get"}
			req := httptest.NewRequest(http.MethodGet, "/", nil)
			req = req.WithContext(genericapirequest.WithRequestInfo(req.Context(), info))
			answer := httptest.NewRecorder()
			failEarly(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { test.serve(w, req, l) }), l).ServeHTTP(answer, req)
			if answer.Code != test.code || !strings.Contains(answer.Body.String(), test.says) {
				t.Errorf("%d: %s", answer.Code, answer.Body)
			}
		})
	}
}
