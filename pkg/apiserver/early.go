// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// Etcd is what is known of an etcd that can be away.
type Etcd interface {
	// Err is nil while etcd answers.
	Err() error
	// Broken is closed when etcd stops to answer, or closed already while it does not.
	Broken() <-chan struct{}
}

// etcdRetrySeconds is when to try again after etcd did not answer.
const etcdRetrySeconds = 5

// failEarly answers requests for objects with an error that names etcd while it does not answer. They would wait for
// it until their deadline, those for content without one, and end with words that say nothing. Requests that are under
// way when etcd goes away end then; content that is being sent or received does not need it yet, and goes on. So does discovery.
func failEarly(next http.Handler, etcd Etcd) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, ok := genericapirequest.RequestInfoFrom(req.Context())
		if !ok || !info.IsResourceRequest || info.Verb == "watch" && info.Subresource == "" {
			next.ServeHTTP(w, req)
			return
		}
		if err := etcd.Err(); err != nil {
			etcdIsAway(w, req, info, err)
			return
		}
		if info.Subresource != "content" && info.Subresource != "uploads" {
			ctx, cancel := context.WithCancel(req.Context())
			defer cancel()
			go func() {
				select {
				case <-etcd.Broken():
					cancel()
				case <-ctx.Done():
				}
			}()
			req = req.WithContext(ctx)
		}
		next.ServeHTTP(&blamingWriter{ResponseWriter: w, req: req, info: info, etcd: etcd}, req)
	})
}

func etcdIsAway(w http.ResponseWriter, req *http.Request, info *genericapirequest.RequestInfo, err error) {
	status := apierrors.NewServiceUnavailable(fmt.Sprintf("etcd, which keeps the objects of this API, does not answer: %v", err))
	status.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: etcdRetrySeconds}
	responsewriters.ErrorNegotiated(status, Codecs, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, req)
}

// blamingWriter replaces the answer of a request that failed because etcd went away meanwhile: an error of the
// server that begins while etcd does not answer.
type blamingWriter struct {
	http.ResponseWriter
	req     *http.Request
	info    *genericapirequest.RequestInfo
	etcd    Etcd
	began   bool
	dropped bool
}

// Unwrap lets http.ResponseController reach the connection.
func (b *blamingWriter) Unwrap() http.ResponseWriter { return b.ResponseWriter }

func (b *blamingWriter) WriteHeader(code int) {
	if b.began {
		return
	}
	b.began = true
	err := b.etcd.Err()
	if code < http.StatusInternalServerError || err == nil {
		b.ResponseWriter.WriteHeader(code)
		return
	}
	b.dropped = true
	etcdIsAway(b.ResponseWriter, b.req, b.info, err)
}

func (b *blamingWriter) Write(p []byte) (int, error) {
	if b.dropped {
		return len(p), nil
	}
	b.began = true
	return b.ResponseWriter.Write(p)
}
