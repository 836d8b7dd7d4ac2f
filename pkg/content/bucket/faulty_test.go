// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"

	"rukpak.io/apiserver/pkg/content/contenttest"
)

// faulty fails requests as next says.
type faulty struct {
	base http.RoundTripper
	next func() contenttest.Fault
}

var errGone = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}

func (f faulty) RoundTrip(req *http.Request) (*http.Response, error) {
	switch f.next() {
	case contenttest.Lost:
		return nil, errors.Join(errGone, closeBody(req))
	case contenttest.Busy:
		return busy(req), closeBody(req)
	case contenttest.Unsure:
		resp, err := f.base.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		return nil, errors.Join(errGone, err, resp.Body.Close())
	default:
		return f.base.RoundTrip(req)
	}
}

func closeBody(req *http.Request) error {
	if req.Body == nil {
		return nil
	}
	return req.Body.Close()
}

// busy is what S3 answers to a client that asks too much of it.
func busy(req *http.Request) *http.Response {
	const text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
	return &http.Response{
		StatusCode: http.StatusServiceUnavailable, Status: "503 Slow Down", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        http.Header{"Content-Type": {"application/xml"}},
		ContentLength: int64(len(text)), Body: io.NopCloser(strings.NewReader(text)), Request: req,
	}
}
