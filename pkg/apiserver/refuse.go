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
			answerError(w, req, info, refused(err))
			return
		}
		// Below the prefix watch, content is read as elsewhere.
		if info.Verb == "watch" && info.Subresource != "content" {
			next.ServeHTTP(w, req)
			return
		}
		confirm := func(code int) *apierrors.StatusError {
			if code != http.StatusNotFound {
				return nil
			}
			// net/http ends the context of a request whose body was waited for in vain. It is answered all the same.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(req.Context()), confirmTimeout)
			defer cancel()
			if err := gate.Confirm(ctx); err != nil {
				return refused(err)
			}
			return nil
		}
		next.ServeHTTP(&replacingWriter{ResponseWriter: w, replace: confirm, req: req, info: info}, req)
	})
}

func refused(err error) *apierrors.StatusError {
	status := apierrors.NewServiceUnavailable(fmt.Sprintf("refused: %v", err))
	status.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: refusalRetrySeconds}
	var d *instance.Disagreement
	if errors.As(err, &d) {
		for _, f := range d.Findings {
			status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes,
				metav1.StatusCause{Type: CauseInstanceMismatch, Field: f.Place, Message: string(f.Reason) + ": " + f.Message})
		}
	}
	return status
}
