// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"
)

// Replicas are several servers behind one Service.
type Replicas struct {
	Servers  []*Server
	Balancer *Balancer

	cluster *Cluster
}

// DeployReplicas applies artifacts/deploy and runs n servers, with these flags beside those of every server, behind a balancer
// in place of the Service's own. It returns when the API is available through kube-apiserver.
func (c *Cluster) DeployReplicas(ctx context.Context, n int, flags ...string) (*Replicas, error) {
	r := &Replicas{cluster: c}
	if err := r.start(ctx, n, flags); err != nil {
		return nil, errors.Join(err, r.Stop())
	}
	return r, nil
}

// Prepare applies artifacts/deploy, for what has to be there before the servers.
func (c *Cluster) Prepare(ctx context.Context) error { return c.apply(ctx) }

func (r *Replicas) start(ctx context.Context, n int, flags []string) error {
	if err := r.cluster.apply(ctx); err != nil {
		return err
	}
	ports, err := freePorts(n)
	if err != nil {
		return err
	}
	for i, port := range ports {
		name := fmt.Sprintf("%s-%d", ServiceName, i)
		s, err := r.cluster.server(ctx, filepath.Join(r.cluster.Dir, name), ServerOptions{Namespace: SystemNamespace, ServiceAccount: ServiceName, Port: port})
		if err != nil {
			return err
		}
		s.args = append(s.args, flags...)
		s.environment = []string{"POD_NAME=" + name, "POD_NAMESPACE=" + SystemNamespace}
		r.Servers = append(r.Servers, s)
	}
	if r.Balancer, err = StartBalancer(r.Servers); err != nil {
		return err
	}
	if err := r.cluster.route(ctx, r.Balancer.Port); err != nil {
		return err
	}
	for _, s := range r.Servers {
		if err := s.Begin(); err != nil {
			return err
		}
	}
	for i, s := range r.Servers {
		if err := s.wait(ctx, "it was ready", func(ctx context.Context) error { return s.Probe(ctx, "/readyz") }); err != nil {
			return err
		}
		if err := r.Balancer.Ready(ctx, i, true); err != nil {
			return err
		}
	}
	return r.Servers[0].wait(ctx, "the API was available", r.cluster.available)
}

// Restart kills one server as kill -9 does, and starts it again. It returns when the server gets connections.
func (r *Replicas) Restart(ctx context.Context, index int) error {
	if err := r.Servers[index].Kill(); err != nil {
		return err
	}
	if err := r.Balancer.Ready(ctx, index, false); err != nil {
		return err
	}
	if err := r.Servers[index].Start(ctx); err != nil {
		return err
	}
	return r.Balancer.Ready(ctx, index, true)
}

// Reconfigure restarts all servers, one after the other, with more flags and variables of the environment. The function that it
// returns undoes that.
func (r *Replicas) Reconfigure(ctx context.Context, flags, environment []string) (undo func(context.Context) error, err error) {
	restart := func(ctx context.Context, change func(*Server)) error {
		for i, s := range r.Servers {
			change(s)
			if err := r.Restart(ctx, i); err != nil {
				return err
			}
		}
		return nil
	}
	undo = func(ctx context.Context) error {
		return restart(ctx, func(s *Server) {
			s.args, s.environment = s.args[:len(s.args)-len(flags)], s.environment[:len(s.environment)-len(environment)]
		})
	}
	return undo, restart(ctx, func(s *Server) {
		s.args, s.environment = append(s.args, flags...), append(s.environment, environment...)
	})
}

// Stop ends all servers and the balancer.
func (r *Replicas) Stop() error {
	var errs []error
	for _, s := range r.Servers {
		if s.Process != nil {
			errs = append(errs, s.Kill())
		}
	}
	if r.Balancer != nil {
		errs = append(errs, r.Balancer.Stop())
	}
	return errors.Join(errs...)
}

// Metrics reads those metrics without labels that a server itself has.
func (c *Cluster) Metrics(ctx context.Context, s *Server) (map[string]float64, error) {
	body, err := c.Fetch(ctx, s, "/metrics")
	if err != nil {
		return nil, err
	}
	values := map[string]float64{}
	for line := range strings.Lines(string(body)) {
		name, value, found := strings.Cut(strings.TrimSpace(line), " ")
		if !found || strings.ContainsAny(name, "#{") {
			continue
		}
		if values[name], err = strconv.ParseFloat(value, 64); err != nil {
			return nil, fmt.Errorf("metric %s: %w", name, err)
		}
	}
	return values, nil
}

// Fetch reads a path of a server itself, as an administrator.
func (c *Cluster) Fetch(ctx context.Context, s *Server, path string) ([]byte, error) {
	config, err := rest.TLSConfigFor(c.Config)
	if err != nil {
		return nil, err
	}
	config = config.Clone()
	config.RootCAs = s.Authority()
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s%s answers %s: %s", s.URL, path, resp.Status, body)
	}
	return body, nil
}
