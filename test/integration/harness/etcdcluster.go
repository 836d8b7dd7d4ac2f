// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/cmd/etcdcerts"
)

// etcdName is what the names of the Secrets of an etcd cluster begin with.
const etcdName = "rukpak-etcd"

// EtcdCluster is an etcd of several members with mutual TLS. Its certificates are those that the subcommand etcd-certs
// makes as Secrets, as files, where the kubelet would put them.
type EtcdCluster struct {
	Members []*Member

	cluster *Cluster
	dir     string
}

// Member is one of them. Its data outlive it.
type Member struct {
	*Process
	// URL is that of its clients.
	URL string

	of            *EtcdCluster
	name, peerURL string
}

// StartEtcdCluster starts an etcd of n members, which keeps everything in dir.
func (c *Cluster) StartEtcdCluster(ctx context.Context, dir string, n int, args ...string) (*EtcdCluster, error) {
	e := &EtcdCluster{cluster: c, dir: dir}
	if err := e.RenewCertificates(ctx, time.Now()); err != nil {
		return nil, err
	}
	ports, err := freePorts(2 * n)
	if err != nil {
		return nil, err
	}
	for i := range n {
		e.Members = append(e.Members, &Member{
			of: e, name: fmt.Sprintf("%s-%d", etcdName, i),
			URL: fmt.Sprintf("https://127.0.0.1:%d", ports[2*i]), peerURL: fmt.Sprintf("https://127.0.0.1:%d", ports[2*i+1]),
		})
	}
	for _, m := range e.Members {
		if err := m.Begin(args...); err != nil {
			return nil, errors.Join(err, e.Stop())
		}
	}
	for _, m := range e.Members {
		if err := m.wait(ctx, "it was healthy", m.Healthy); err != nil {
			return nil, errors.Join(err, e.Stop())
		}
	}
	return e, nil
}

// Stop ends all members.
func (e *EtcdCluster) Stop() error {
	var errs []error
	for _, m := range e.Members {
		if m.Process != nil {
			errs = append(errs, m.Kill())
		}
	}
	return errors.Join(errs...)
}

// RenewCertificates does what the CronJob would at that time, and what the kubelet does then.
func (e *EtcdCluster) RenewCertificates(ctx context.Context, at time.Time) error {
	config := etcdcerts.Config{Namespace: SystemNamespace, Name: etcdName, ClusterDomain: "cluster.local"}
	if _, err := etcdcerts.Ensure(ctx, e.cluster.Kube, config, at); err != nil {
		return err
	}
	for _, kind := range []string{"peer", "server", "client"} {
		secret, err := e.cluster.Kube.CoreV1().Secrets(SystemNamespace).Get(ctx, etcdName+"-"+kind, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(e.dir, kind), 0o700); err != nil {
			return err
		}
		for name, data := range secret.Data {
			if err := os.WriteFile(e.file(kind, name), data, 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *EtcdCluster) file(kind, name string) string { return filepath.Join(e.dir, kind, name) }

// Endpoints are the URLs of all members.
func (e *EtcdCluster) Endpoints() []string {
	var urls []string
	for _, m := range e.Members {
		urls = append(urls, m.URL)
	}
	return urls
}

// Flags are those with which a server uses this etcd, at these URLs.
func (e *EtcdCluster) Flags(endpoints ...string) []string {
	return []string{
		"--etcd-servers=" + strings.Join(endpoints, ","), "--etcd-cafile=" + e.file("client", "ca.crt"),
		"--etcd-certfile=" + e.file("client", corev1.TLSCertKey), "--etcd-keyfile=" + e.file("client", corev1.TLSPrivateKeyKey),
	}
}

// Client connects as a server does.
func (e *EtcdCluster) Client(endpoints ...string) (*clientv3.Client, error) {
	config, err := e.tls()
	if err != nil {
		return nil, err
	}
	return clientv3.New(clientv3.Config{Endpoints: endpoints, TLS: config, DialTimeout: dialTimeout})
}

func (e *EtcdCluster) tls() (*tls.Config, error) {
	return transport.TLSInfo{
		CertFile: e.file("client", corev1.TLSCertKey), KeyFile: e.file("client", corev1.TLSPrivateKeyKey), TrustedCAFile: e.file("client", "ca.crt"),
	}.ClientConfig()
}

// Begin starts a member that was killed, or that has not run yet, with the flags that artifacts/deploy/ha has where they matter to
// how members and clients know each other, and does not wait for it.
func (m *Member) Begin(args ...string) error {
	var all []string
	for _, other := range m.of.Members {
		all = append(all, other.name+"="+other.peerURL)
	}
	file := m.of.file
	var err error
	m.Process, err = start(m.name, filepath.Join(m.of.dir, m.name+".log"), m.of.cluster.path("etcd"), append([]string{
		"--name=" + m.name, "--data-dir=" + filepath.Join(m.of.dir, m.name), "--unsafe-no-fsync", "--log-level=warn",
		"--initial-cluster=" + strings.Join(all, ","), "--initial-cluster-token=" + etcdName,
		"--listen-client-urls=" + m.URL, "--advertise-client-urls=" + m.URL, "--client-cert-auth",
		"--trusted-ca-file=" + file("server", "ca.crt"), "--cert-file=" + file("server", corev1.TLSCertKey), "--key-file=" + file("server", corev1.TLSPrivateKeyKey),
		"--listen-peer-urls=" + m.peerURL, "--initial-advertise-peer-urls=" + m.peerURL, "--peer-client-cert-auth", "--peer-skip-client-san-verification",
		"--peer-trusted-ca-file=" + file("peer", "ca.crt"), "--peer-cert-file=" + file("peer", corev1.TLSCertKey), "--peer-key-file=" + file("peer", corev1.TLSPrivateKeyKey),
		"--tls-min-version=TLS1.3", "--snapshot-count=1000", "--snapshot-catchup-entries=100",
	}, args...)...)
	return err
}

// Start is Begin, and waits until the member takes part.
func (m *Member) Start(ctx context.Context, args ...string) error {
	if err := m.Begin(args...); err != nil {
		return err
	}
	return m.wait(ctx, "it was healthy", m.Healthy)
}

// Healthy asks a member whether it takes part.
func (m *Member) Healthy(ctx context.Context) error {
	config, err := m.of.tls()
	if err != nil {
		return err
	}
	return Probe(ctx, m.URL+"/health", config)
}
