// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// unreadTime is how long the rest of a body that a handler did not read may take to come.
const unreadTime = 5 * time.Second

// boundUnread bounds what net/http does once a handler is done: before it sends a small answer it reads up to 256 KiB of what is
// left of the body, without a deadline. A client that sends nothing more would never be answered, and its connection never
// closed. It is the outermost of the handlers, so that it sees the answers of all, those to callers without a credential too.
//
// The next request on the connection has no part in the deadline: net/http sets its own before it.
func boundUnread(next http.Handler, within time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		// Over HTTP/2 nothing is read of a body that nobody wants.
		if req.ProtoMajor > 1 || req.Body == nil || req.Body == http.NoBody || req.Header.Get("Upgrade") != "" {
			next.ServeHTTP(w, req)
			return
		}
		body := &watchedBody{ReadCloser: req.Body}
		// A copy: net/http looks at the body of its own.
		watched := req.WithContext(req.Context())
		watched.Body = body
		next.ServeHTTP(w, watched)
		// After the end of a body net/http reads on to see whether the client goes away: no deadline must be set then.
		control := http.NewResponseController(w)
		switch body.state.Load() {
		case bodyOpen:
			_ = control.SetReadDeadline(time.Now().Add(within))
		case bodyBroken:
			_ = control.SetReadDeadline(time.Now())
		}
	})
}

// How far a body was read.
const (
	bodyOpen   = iota // there may be more
	bodyEnded         // to its end
	bodyBroken        // until it broke, or was waited for in vain
)

// watchedBody notes how far it was read. A handler that ran out of time may still read it after the answer.
type watchedBody struct {
	io.ReadCloser
	state atomic.Int32
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == io.EOF:
		b.state.Store(bodyEnded)
	case err != nil:
		b.state.Store(bodyBroken)
	}
	return n, err
}
