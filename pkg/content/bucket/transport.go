// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bucket

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

// Defaults of Options.
const (
	DefaultCall  = 20 * time.Second
	DefaultStall = 30 * time.Second
	DefaultPause = 5 * time.Second
)

// Slower than these an object store is not waited for.
const (
	transferRate = 128 << 10 // bytes a second, to or from it
	copyRate     = 16 << 20  // bytes a second, inside of it
)

var (
	errSlow  = errors.New("the object store gave no answer in time")
	errStall = errors.New("the transfer stands still")
)

// patience is how long the object store is waited for.
type patience struct {
	Call  time.Duration // for an answer, repetitions included
	Stall time.Duration // for the next byte of a request
}

func (p patience) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, p.Call, errSlow)
}

func (p patience) transfer(ctx context.Context, size int64) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, p.Call+time.Duration(size/transferRate)*time.Second, errSlow)
}

// copy lets the answer come late: it comes after the work.
func (p patience) copy(ctx context.Context, size int64) (context.Context, context.CancelFunc) {
	limit := p.Call + time.Duration(size/copyRate)*time.Second
	return context.WithTimeoutCause(context.WithValue(ctx, stallKey{}, limit), limit, errSlow)
}

// stallKey is that of the patience of a request, where it is another than usual.
type stallKey struct{}

// newTransport speaks HTTP/1.1, where no slow reader holds up another, with a pool of authorities.
func newTransport(authorities *x509.CertPool) *http.Transport {
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           dialer.DialContext,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: authorities},
		TLSHandshakeTimeout:   5 * time.Second,
		ExpectContinueTimeout: time.Second,
		IdleConnTimeout:       time.Minute,
		MaxIdleConnsPerHost:   64,
		DisableCompression:    true,
		ReadBufferSize:        64 << 10,
		WriteBufferSize:       64 << 10,
	}
}

// authorities are those of the system, and those in a file if it is named.
func authorities(file string) (*x509.CertPool, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("read the authorities of the system: %w", err)
	}
	return withFile(pool, file)
}

func withFile(pool *x509.CertPool, file string) (*x509.CertPool, error) {
	if file == "" {
		return pool, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("ca-file: %w", err)
	}
	if pool = pool.Clone(); !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("ca-file %s: no certificate in it", file)
	}
	return pool, nil
}

// watched ends requests in which nothing moves.
type watched struct {
	base  http.RoundTripper
	stall time.Duration
}

func (t *watched) RoundTrip(req *http.Request) (*http.Response, error) {
	stall := t.stall
	if limit, ok := req.Context().Value(stallKey{}).(time.Duration); ok {
		stall = limit
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	w := &watch{stall: stall, cancel: cancel, cause: func() error { return context.Cause(ctx) }}
	w.timer = time.AfterFunc(stall, func() { cancel(stalled{}) })
	req = req.Clone(ctx)
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = &sent{ReadCloser: req.Body, watch: w}
		if again := req.GetBody; again != nil {
			req.GetBody = func() (io.ReadCloser, error) {
				body, err := again()
				return &sent{ReadCloser: body, watch: w}, err
			}
		}
	}
	resp, err := t.base.RoundTrip(req)
	if err != nil {
		w.timer.Stop()
		err = w.explain(err)
		cancel(nil)
		return nil, err
	}
	w.timer.Stop()
	resp.Body = &received{ReadCloser: resp.Body, watch: w}
	return resp, nil
}

// CloseIdleConnections is what http.Client looks for.
func (t *watched) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// stalled is errStall as an error that clients of object stores try again after.
type stalled struct{}

func (stalled) Error() string   { return errStall.Error() }
func (stalled) Timeout() bool   { return true }
func (stalled) Temporary() bool { return true }
func (stalled) Unwrap() error   { return errStall }

var _ net.Error = stalled{}

// watch is one request.
type watch struct {
	stall  time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc
	cause  func() error
}

// explain replaces the error of a context that the watch ended.
func (w *watch) explain(err error) error {
	if s := (stalled{}); errors.As(w.cause(), &s) {
		return s
	}
	return err
}

// sent is the body of a request: each piece that is taken from it is a move.
type sent struct {
	io.ReadCloser
	watch *watch
}

func (s *sent) Read(p []byte) (int, error) {
	s.watch.timer.Reset(s.watch.stall)
	return s.ReadCloser.Read(p)
}

// received is the body of an answer. The time counts only while somebody waits for bytes.
type received struct {
	io.ReadCloser
	watch *watch
}

func (r *received) Read(p []byte) (int, error) {
	r.watch.timer.Reset(r.watch.stall)
	n, err := r.ReadCloser.Read(p)
	r.watch.timer.Stop()
	if err != nil && !errors.Is(err, io.EOF) {
		err = r.watch.explain(err)
	}
	return n, err
}

func (r *received) Close() error {
	r.watch.timer.Stop()
	err := r.ReadCloser.Close()
	r.watch.cancel(nil)
	return err
}
