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
	// drainBytesBusy is the bound where the server is the one that cannot: what it reads then is load of its own.
	drainBytesBusy = 1 << 20
	// leaveTime is how long a body that waits for leave is waited for in turn: kube-apiserver sends it at once all the same.
	leaveTime = 500 * time.Millisecond
)

// Refuse answers a request with an error, and reads its body, so that the client hears why. One that has not sent all of it by then
// would find its connection broken, and kube-apiserver in between says nothing better. Of a body that is known to be larger
// nothing is read: that would not help it. begun says whether some of the body was asked for before.
func Refuse(w http.ResponseWriter, req *http.Request, answer func(error), begun bool, refusal error) {
	switch {
	case !drains(req, refusal):
		answer(refusal)
	case !begun && req.Header.Get("Expect") != "":
		// Whoever waits for leave to send the body has its answer in place of that. To read would be to give the leave, but
		// not once there is an answer; behind the interim answer kube-apiserver would show the final one as 200.
		answer(refusal)
		drain(w, req, leaveTime)
	default:
		drain(w, req, drainTime)
		answer(refusal)
	}
}

// drain reads a body that has to begin within a time. How far it comes is no matter: the client is answered.
func drain(w http.ResponseWriter, req *http.Request, begin time.Duration) {
	control := http.NewResponseController(w)
	// As for a read: where deadlines are not supported it is bounded by its size alone.
	_ = control.SetReadDeadline(time.Now().Add(begin))
	_, err := io.CopyN(io.Discard, req.Body, 1)
	if err == nil {
		_ = control.SetReadDeadline(time.Now().Add(drainTime))
		_, err = io.CopyN(io.Discard, req.Body, drainBytes-1)
	}
	if err == io.EOF {
		// The deadline is that of what is left, which net/http reads before it answers.
		_ = control.SetReadDeadline(time.Time{})
	}
}

// drains reports whether the body of a request that is refused is to be read.
func drains(req *http.Request, refusal error) bool {
	if req.ProtoMajor > 1 {
		return false // over HTTP/2 an early answer breaks nothing (RFC 9113, section 8.1)
	}
	var status apierrors.APIStatus
	if errors.As(refusal, &status) {
		switch status.Status().Code {
		case http.StatusRequestTimeout:
			return false // there is no more
		case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusInsufficientStorage:
			return req.ContentLength >= 0 && req.ContentLength <= drainBytesBusy
		}
	}
	return req.ContentLength <= drainBytes
}
