// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package stores

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"rukpak.io/apiserver/test/integration/harness"
)

// readBuffer is how much a reader takes at once.
const readBuffer = 256 << 10

// target is a server and the way to it.
type target struct {
	name    string
	client  *http.Client
	base    string
	process *harness.Process
}

// newClient returns a client that keeps as many connections as there are clients of a figure.
func newClient(t testing.TB, roots *x509.CertPool, certificates ...tls.Certificate) *http.Client {
	transport := &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: roots, Certificates: certificates},
		MaxIdleConnsPerHost: mostClients,
		DisableCompression:  true,
		WriteBufferSize:     readBuffer,
		ReadBufferSize:      readBuffer,
		// As our own port, and as the bare server.
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// administrator is who measures.
func administrator(t testing.TB) tls.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(shared.Config.CertData, shared.Config.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// straight is the server itself.
func straight(t testing.TB) target {
	return target{"straight", newClient(t, shared.server.Authority(), administrator(t)), shared.server.URL, shared.server.Process}
}

// through is the server behind kube-apiserver.
func through(t testing.TB) target {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(shared.CA)
	return target{"through kube-apiserver", newClient(t, roots, administrator(t)), shared.URL, shared.server.Process}
}

// get reads a URL to the end, which has to be of that many bytes.
func (w target) get(ctx context.Context, path string, size int64, buffer []byte) (err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.base+path, nil)
	if err != nil {
		return err
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("GET %s: %s: %s", path, resp.Status, text)
	}
	var n int64
	for {
		got, err := resp.Body.Read(buffer)
		n += int64(got)
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("GET %s: after %d bytes: %w", path, n, err)
		}
	}
	if n != size {
		return fmt.Errorf("GET %s: %d bytes, not %d", path, n, size)
	}
	return nil
}

// put writes a body. Told to come again, it does.
func (w target) put(ctx context.Context, path string, body []byte) error {
	for {
		wait, err := w.tryPut(ctx, path, body)
		if err != nil || wait == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

func (w target) tryPut(ctx context.Context, path string, body []byte) (wait time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, w.base+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	resp, err := w.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return 0, err
	}
	if resp.StatusCode == http.StatusTooManyRequests {
		seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
		return time.Duration(max(1, seconds)) * time.Second, err
	}
	if resp.StatusCode/100 != 2 {
		return 0, fmt.Errorf("PUT %s: %s: %s", path, resp.Status, answer)
	}
	return 0, nil
}

// cpu is how many seconds of processor a process has used.
func cpu(t testing.TB, p *harness.Process) float64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	// The name, in parentheses, may have spaces; utime and stime are the 14th and 15th field.
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	var ticks float64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseFloat(field, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return ticks / 100 // USER_HZ
}

// resident is the resident memory of a process, in MiB.
func resident(t testing.TB, p *harness.Process) float64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib / 1024
		}
	}
	t.Fatalf("no VmRSS of %d", p.PID())
	return 0
}
