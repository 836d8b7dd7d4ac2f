// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"net/http"
	"net/netip"
	"time"
)

// maxResponse bounds every response but that of a layer, in bytes. Registries
// refuse manifests of more than 4 MiB.
const maxResponse = 4 << 20

// acceptBlob is the Accept header of requests for layers, and of those alone.
// A token server that the registry names is asked by the authentication layer,
// which sets none.
const acceptBlob = "application/octet-stream, */*;q=0.5"

// guard is the transport below everything that is asked for one image. It
// refuses plain HTTP wherever the registry is not on a loopback address, also
// after a redirect, and bounds what a response may hold.
type guard struct {
	base     http.RoundTripper
	loopback bool
}

func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && !(g.loopback && isLoopback(req.URL.Hostname())) {
		return nil, errPlainHTTP
	}
	resp, err := g.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if req.Header.Get("Accept") != acceptBlob {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxResponse)
	}
	return resp, nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}

// watchdog cancels a transfer in which nothing moves. A limit on the whole time
// would end big and slow, but healthy ones.
type watchdog struct {
	timer *time.Timer
	after time.Duration
}

func newWatchdog(ctx context.Context, after time.Duration) (context.Context, *watchdog, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(after, func() { cancel(errStalled) })
	return ctx, &watchdog{timer: timer, after: after}, func() {
		timer.Stop()
		cancel(nil)
	}
}

// Write takes note of a piece that arrived.
func (d *watchdog) Write(p []byte) (int, error) {
	d.timer.Reset(d.after)
	return len(p), nil
}
