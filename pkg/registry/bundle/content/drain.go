// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"errors"
	"io"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Bounds of what is read of a body that is not wanted.
const (
	drainBytes = 32 << 20
	drainTime  = 5 * time.Second
)

// Drain reads the body of a request that is refused, so that the client hears why. One that has not sent all of it by then
// would find its connection broken, and kube-apiserver in between says nothing better. Of a body that is known to be larger
// nothing is read: that would not help it.
func Drain(w http.ResponseWriter, req *http.Request, refusal error) {
	var status apierrors.APIStatus
	if errors.As(refusal, &status) && status.Status().Code == http.StatusRequestTimeout {
		return // there is no more
	}
	if req.ContentLength > drainBytes {
		return
	}
	control := http.NewResponseController(w)
	// As for a read: where deadlines are not supported it is bounded by its size alone.
	_ = control.SetReadDeadline(time.Now().Add(drainTime))
	// However far it comes, the answer follows.
	_, _ = io.CopyN(io.Discard, req.Body, drainBytes)
	_ = control.SetReadDeadline(time.Time{})
}
