// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/client-go/tools/clientcmd"

	clientset "rukpak.io/apiserver/pkg/generated/clientset/versioned"
)

// Server is a rukpak-apiserver whose data outlive it.
type Server struct {
	*Process
	// Dir is the data dir.
	Dir string
	// URL is where the server itself listens, and Port the port of it.
	URL  string
	Port int
	// More are arguments of the next start, beside its own.
	More []string

	program string
	log     string
	args    []string
	// environment is added to that of the tests.
	environment []string
}

// newServer chooses where a server listens. Its data and its log are in dir.
func newServer(programs Programs, dir string, port int, args ...string) *Server {
	s := &Server{
		Dir: filepath.Join(dir, "data"), Port: port, URL: fmt.Sprintf("https://127.0.0.1:%d", port),
		program: programs.Server, log: filepath.Join(dir, "rukpak-apiserver.log"),
	}
	s.args = append([]string{
		"--data-dir=" + s.Dir, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		"--content-gc-interval=1s", "-v=2",
	}, args...)
	return s
}

// Start starts a server that was killed, or that has not run yet, and returns when it is ready.
func (s *Server) Start(ctx context.Context) error { return s.startUntil(ctx, "/readyz") }

// StartAlive does as Start, and returns as soon as the server is alive.
func (s *Server) StartAlive(ctx context.Context) error { return s.startUntil(ctx, "/livez") }

func (s *Server) startUntil(ctx context.Context, check string) error {
	if err := s.Begin(); err != nil {
		return err
	}
	return s.wait(ctx, "it answered "+check, func(ctx context.Context) error {
		return s.Probe(ctx, check)
	})
}

// Probe expects 200 from a path of the server that needs no credential.
func (s *Server) Probe(ctx context.Context, path string) error {
	return Probe(ctx, s.URL+path, &tls.Config{RootCAs: s.Authority()})
}

// Begin starts the server and does not wait for it.
func (s *Server) Begin() error {
	var err error
	s.Process, err = StartProgram("rukpak-apiserver", s.log, s.program, s.environment, slices.Concat(s.args, s.More)...)
	return err
}

// Authority trusts what the server's own certificate is signed with. In a cluster that is in a
// Secret; here the certificate itself is enough, since it is in the data dir.
func (s *Server) Authority() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, name := range []string{"ca.crt", "serving.crt"} {
		if raw, err := os.ReadFile(filepath.Join(s.Dir, "pki", name)); err == nil {
			pool.AppendCertsFromPEM(raw)
		}
	}
	return pool
}

// Kubeconfig is the file that a standalone server writes.
func (s *Server) Kubeconfig() string { return filepath.Join(s.Dir, "kubeconfig") }

// Client returns the generated client of a standalone server.
func (s *Server) Client() (clientset.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return clientset.NewForConfig(config)
}

// StartStandalone starts a server without a cluster, which keeps its data in dir, and returns when it is ready.
func StartStandalone(ctx context.Context, programs Programs, dir string, args ...string) (*Server, error) {
	return startStandalone(ctx, (*Server).Start, programs, dir, args...)
}

// StartStandaloneAlive does as StartStandalone, and returns as soon as the server is alive.
func StartStandaloneAlive(ctx context.Context, programs Programs, dir string, args ...string) (*Server, error) {
	return startStandalone(ctx, (*Server).StartAlive, programs, dir, args...)
}

func startStandalone(ctx context.Context, start func(*Server, context.Context) error, programs Programs, dir string, args ...string) (*Server, error) {
	var s *Server
	_, err := onPorts(1, func(ports []int) (*Process, error) {
		s = newServer(programs, dir, ports[0], append([]string{"--standalone"}, args...)...)
		err := start(s, ctx)
		return s.Process, err
	})
	if err != nil && s != nil && s.Process != nil {
		err = errors.Join(err, s.Kill())
	}
	return s, err
}

// Probe expects 200 from a URL. The error says what is answered in its place.
func Probe(ctx context.Context, url string, config *tls.Config) error {
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, logTail))
		return fmt.Errorf("%s answers %s: %s", url, resp.Status, body)
	}
	return nil
}
