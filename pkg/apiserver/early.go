// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
			answerError(w, req, info, etcdIsAway(err))
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
		// A request fails because etcd went away meanwhile if its answer is an error of the server that begins while etcd does not answer.
		blame := func(code int) *apierrors.StatusError {
			if err := etcd.Err(); err != nil && code >= http.StatusInternalServerError {
				return etcdIsAway(err)
			}
			return nil
		}
		next.ServeHTTP(&replacingWriter{ResponseWriter: w, replace: blame, req: req, info: info}, req)
	})
}

func etcdIsAway(err error) *apierrors.StatusError {
	status := apierrors.NewServiceUnavailable(fmt.Sprintf("etcd, which keeps the objects of this API, does not answer: %v", err))
	status.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: etcdRetrySeconds}
	return status
}
