// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// replacingWriter lets somebody who knows better answer in place of a handler.
type replacingWriter struct {
	http.ResponseWriter
	// replace is called once, with the code that the answer is to have. An error that it returns is answered in its place.
	replace func(code int) *apierrors.StatusError
	req     *http.Request
	info    *genericapirequest.RequestInfo
	began   bool
	dropped bool
}

// Unwrap lets http.ResponseController reach the connection.
func (r *replacingWriter) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *replacingWriter) WriteHeader(code int) {
	if r.began {
		return
	}
	r.began = true
	if err := r.replace(code); err != nil {
		r.dropped = true
		r.Header().Del("Content-Length")
		answerError(r.ResponseWriter, r.req, r.info, err)
		return
	}
	r.ResponseWriter.WriteHeader(code)
}

// Write drops what belongs to an answer that was replaced. One that begins with it has the code 200, which nobody replaces.
func (r *replacingWriter) Write(p []byte) (int, error) {
	if r.dropped {
		return len(p), nil
	}
	r.began = true
	return r.ResponseWriter.Write(p)
}

// answerError answers a request with a Status.
func answerError(w http.ResponseWriter, req *http.Request, info *genericapirequest.RequestInfo, err *apierrors.StatusError) {
	responsewriters.ErrorNegotiated(err, Codecs, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, req)
}
