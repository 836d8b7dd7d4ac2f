// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"
)

// maxResponse bounds every response but that of a layer, in bytes. Registries
// refuse manifests of more than 4 MiB.
const maxResponse = 4 << 20

// acceptBlob is the Accept header of requests for layers, and of those alone.
// A token server that the registry names is asked by the authentication layer,
// which sets none.
const acceptBlob = "application/octet-stream, */*;q=0.5"

// transports make connections that trust what a file says at the moment, beside what
// the system trusts.
type transports struct {
	file string

	mu      sync.Mutex
	content []byte // of the file, as current was made of it
	current *http.Transport
}

// get returns the transport for one image.
func (t *transports) get() (http.RoundTripper, error) {
	var content []byte
	if t.file != "" {
		var err error
		if content, err = readAccessFile(t.file); err != nil {
			return nil, err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current != nil && bytes.Equal(content, t.content) {
		return t.current, nil
	}
	roots, err := authorities(t.file, content)
	if err != nil {
		return nil, err
	}
	if t.current != nil {
		t.current.CloseIdleConnections()
	}
	t.content, t.current = content, newTransport(roots)
	return t.current, nil
}

func newTransport(roots *x509.CertPool) *http.Transport {
	dialer := &net.Dialer{Timeout: 15 * time.Second, KeepAlive: 30 * time.Second, ControlContext: checkAddress}
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           dialer.DialContext,
		TLSClientConfig:       &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:     true,
		MaxIdleConns:          20,
		IdleConnTimeout:       30 * time.Second,
		TLSHandshakeTimeout:   15 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second,
		// A transparent decompression would hide how much was received.
		DisableCompression: true,
	}
}

func readAuthorities(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	content, err := readAccessFile(file)
	if err != nil {
		return nil, err
	}
	return authorities(file, content)
}

// authorities are those of the system and those in content; nil, which means those of
// the system, without a file.
func authorities(file string, content []byte) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool() // a system without any, as in an image FROM scratch
	}
	if !roots.AppendCertsFromPEM(content) {
		return nil, fmt.Errorf("%w: %s holds no certificate", ErrAccess, file)
	}
	return roots, nil
}

// guard is the transport below everything that is asked for one image. What a
// registry redirects to, and the token server that it names, are its choice and not
// ours: so neither is spoken to without TLS unless the registry itself may be, nor
// found on loopback unless the registry itself is there. And it bounds what a response may hold.
type guard struct {
	base http.RoundTripper
	// registry is the host of the image, with the port if the reference has one.
	registry string
	plain    bool
}

func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	own := req.URL.Host == g.registry
	atHome := isLoopback(hostOf(g.registry))
	if req.URL.Scheme != "https" && !(g.plain && (own || atHome && isLoopback(req.URL.Hostname()))) {
		return nil, fmt.Errorf("%s: %w", req.URL.Host, errPlainHTTP)
	}
	// A connection that was kept from an image of loopback is not dialed again, so this is not left to the dialer. No proxy
	// is used for such a host.
	if isLoopback(req.URL.Hostname()) && !own && !atHome {
		return nil, fmt.Errorf("%s: %w", req.URL.Host, errForbiddenAddress)
	}
	proxy, err := http.ProxyFromEnvironment(req)
	if err != nil {
		return nil, err
	}
	// Where a proxy connects to is the proxy's business, and it may be on loopback itself.
	if proxy == nil {
		req = req.WithContext(context.WithValue(req.Context(), reach{}, reach{loopback: own || atHome}))
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

// reach is the key, and the value, under which a context says what may be connected to.
type reach struct{ loopback bool }

// credentialServers are where clouds give credentials to whoever asks, beside addresses of a link: those of EC2 and of
// Google by IPv6, and of Alibaba.
var credentialServers = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254"), netip.MustParseAddr("100.100.100.200"),
}

// checkAddress refuses, whatever name led to it, an address where no registry is: that
// of a link alone, where clouds give credentials to whoever asks, their other ones, and loopback where it
// is not what the reference itself means.
func checkAddress(ctx context.Context, _, address string, _ syscall.RawConn) error {
	allowed, ok := ctx.Value(reach{}).(reach)
	if !ok {
		return nil
	}
	target, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	switch ip := target.Addr().Unmap(); {
	case ip.IsLinkLocalUnicast(), ip.IsMulticast(), ip.IsUnspecified(), slices.Contains(credentialServers, ip.WithZone("")):
		return fmt.Errorf("%s: %w", ip, errForbiddenAddress)
	case ip.IsLoopback() && !allowed.loopback:
		return fmt.Errorf("%s: %w", ip, errForbiddenAddress)
	}
	return nil
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
