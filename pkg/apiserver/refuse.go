// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"rukpak.io/apiserver/pkg/content/instance"
)

// Gate says whether the etcd and the stores are the ones that this server is about.
type Gate interface {
	// Err is nil while they are.
	Err() error
	// Confirm asks etcd once more, and returns what Err does then.
	Confirm(ctx context.Context) error
}

const (
	// CauseInstanceMismatch is the type of the causes that name what disagrees; the field is the place.
	CauseInstanceMismatch metav1.CauseType = "InstanceMismatch"

	// refusalRetrySeconds is when to try again. Clients do so ten times before they show the error, and a person waits for it.
	refusalRetrySeconds = 1
	// confirmTimeout bounds how long an answer waits to be confirmed.
	confirmTimeout = 10 * time.Second
)

// refuse answers requests for objects with 503 while the gate is closed. Discovery goes on. What a wrong etcd does not
// have is not answered with 404, which Kubernetes takes as the end of the object and of all that it owns: before
// each 404 the gate is asked to look again.
func refuse(next http.Handler, gate Gate) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, ok := genericapirequest.RequestInfoFrom(req.Context())
		if !ok || !info.IsResourceRequest {
			next.ServeHTTP(w, req)
			return
		}
		if err := gate.Err(); err != nil {
			refused(w, req, info, err)
			return
		}
		// Below the prefix watch, content is read as elsewhere.
		if info.Verb == "watch" && info.Subresource != "content" {
			next.ServeHTTP(w, req)
			return
		}
		next.ServeHTTP(&confirmingWriter{ResponseWriter: w, req: req, info: info, gate: gate}, req)
	})
}

func refused(w http.ResponseWriter, req *http.Request, info *genericapirequest.RequestInfo, err error) {
	status := apierrors.NewServiceUnavailable(fmt.Sprintf("refused: %v", err))
	status.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: refusalRetrySeconds}
	var d *instance.Disagreement
	if errors.As(err, &d) {
		for _, f := range d.Findings {
			status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes,
				metav1.StatusCause{Type: CauseInstanceMismatch, Field: f.Place, Message: string(f.Reason) + ": " + f.Message})
		}
	}
	responsewriters.ErrorNegotiated(status, Codecs, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, req)
}

// confirmingWriter replaces the answer that an object is not there if the gate does not confirm it.
type confirmingWriter struct {
	http.ResponseWriter
	req     *http.Request
	info    *genericapirequest.RequestInfo
	gate    Gate
	began   bool
	dropped bool
}

// Unwrap lets http.ResponseController reach the connection.
func (c *confirmingWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *confirmingWriter) WriteHeader(code int) {
	if c.began {
		return
	}
	c.began = true
	if code == http.StatusNotFound {
		ctx, cancel := context.WithTimeout(c.req.Context(), confirmTimeout)
		defer cancel()
		if err := c.gate.Confirm(ctx); err != nil {
			c.dropped = true
			c.Header().Del("Content-Length")
			refused(c.ResponseWriter, c.req, c.info, err)
			return
		}
	}
	c.ResponseWriter.WriteHeader(code)
}

func (c *confirmingWriter) Write(p []byte) (int, error) {
	if c.dropped {
		return len(p), nil
	}
	c.began = true
	return c.ResponseWriter.Write(p)
}
