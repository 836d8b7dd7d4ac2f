// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/source/image"
	"rukpak.io/apiserver/pkg/unpack"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

// identitySecret is the name of the Secret of the server's own authority.
const identitySecret = "rukpak-apiserver-pki"

func (o *Options) pkiDir() string { return filepath.Join(o.DataDir, "pki") }

// clusterConfig is how the server reaches its cluster.
func (o *Options) clusterConfig() (*rest.Config, error) {
	if path := o.Recommended.CoreAPI.CoreAPIKubeconfigPath; path != "" {
		return clientcmd.BuildConfigFromFlags("", path)
	}
	return rest.InClusterConfig()
}

// applyIdentity finds the server's authority, and makes it serve with a certificate of that one.
func (p *process) applyIdentity(ctx context.Context) error {
	addresses, err := ownAddresses()
	if err != nil {
		return err
	}
	if p.Standalone {
		p.identity, err = fileIdentity(p.pkiDir())
	} else {
		p.identity, err = p.joinCluster(ctx)
	}
	if err != nil {
		return err
	}
	if p.endpoint != nil {
		if ip := p.endpoint.clusterIP(ctx); ip != nil {
			addresses = append(addresses, ip)
		}
	}
	secure := p.Recommended.SecureServing
	if b := secure.BindAddress; b != nil && !b.IsUnspecified() && !b.IsLoopback() {
		addresses = append(addresses, b)
	}
	p.ownCertificate = secure.ServerCert.CertKey.CertFile == ""
	if p.ownCertificate {
		files := newServingFiles(p.pkiDir(), p.identity.authority, serviceNames(p.ServiceName, p.Namespace), addresses)
		if err := files.issue(); err != nil {
			return err
		}
		secure.ServerCert.CertKey.CertFile, secure.ServerCert.CertKey.KeyFile = files.cert, files.key
		go files.renew(ctx)
	}
	if p.Standalone {
		if p.Recommended.Authentication.ClientCert.ClientCA == "" {
			p.Recommended.Authentication.ClientCert.ClientCA = filepath.Join(p.pkiDir(), keyAuthority)
		}
		return p.writeKubeconfig(p.identity)
	}
	return nil
}

// joinCluster makes the clients of the cluster and takes the identity that is kept there.
func (p *process) joinCluster(ctx context.Context) (*identity, error) {
	config, err := p.clusterConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	p.kube, err = kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the client of the cluster: %w", err)
	}
	id, err := clusterIdentity(ctx, p.kube, p.Namespace, identitySecret)
	if err != nil {
		return nil, err
	}
	p.endpoint = &endpoint{client: p.kube, service: p.ServiceName, namespace: p.Namespace, ca: id.authority.CertPEM}
	return id, nil
}

// endpoint is where unpack pods send content: the cluster IP of the server's Service, so that pods need no DNS.
type endpoint struct {
	client             kubernetes.Interface
	service, namespace string
	ca                 []byte
	known              atomic.Pointer[pod.Endpoint]
}

const endpointTimeout = 5 * time.Second

// get returns the endpoint, or an empty one while the Service cannot be read. A cluster IP never changes.
func (e *endpoint) get() pod.Endpoint {
	if known := e.known.Load(); known != nil {
		return *known
	}
	ctx, cancel := context.WithTimeout(context.Background(), endpointTimeout)
	defer cancel()
	found, err := e.find(ctx)
	if err != nil {
		klog.Background().Error(err, "Cannot find out where unpack pods send content")
		return pod.Endpoint{}
	}
	e.known.Store(found)
	return *found
}

func (e *endpoint) find(ctx context.Context) (*pod.Endpoint, error) {
	service, err := e.client.CoreV1().Services(e.namespace).Get(ctx, e.service, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	host := service.Spec.ClusterIP
	if host == "" || host == "None" {
		// A Service without a cluster IP is reached by its name.
		host = serviceNames(e.service, e.namespace)[0]
	}
	if len(service.Spec.Ports) == 0 {
		return nil, fmt.Errorf("service %s/%s has no port", e.namespace, e.service)
	}
	return &pod.Endpoint{
		URL:        "https://" + net.JoinHostPort(host, strconv.Itoa(int(service.Spec.Ports[0].Port))),
		ServerName: serviceNames(e.service, e.namespace)[0],
		CA:         e.ca,
	}, nil
}

// clusterIP is the address of the Service, or nil.
func (e *endpoint) clusterIP(ctx context.Context) net.IP {
	ctx, cancel := context.WithTimeout(ctx, endpointTimeout)
	defer cancel()
	service, err := e.client.CoreV1().Services(e.namespace).Get(ctx, e.service, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return net.ParseIP(service.Spec.ClusterIP)
}

// resolver returns the function that finds out which image an attempt has unpacked.
func (p *process) resolver() func(context.Context, *rukpak.Bundle) (string, error) {
	return func(ctx context.Context, b *rukpak.Bundle) (string, error) {
		if b.Spec.Source.Image == nil || b.Status.Unpack == nil {
			return "", nil
		}
		reference := b.Spec.Source.Image.Reference
		if b.Status.Unpack.Mode == rukpak.UnpackModeDirect {
			return b.Status.Unpack.ResolvedReference, nil
		}
		if pod.Digested(reference) {
			return reference, nil
		}
		return waitResolved(ctx, p.kube, b.Namespace, b.Status.Unpack.PodName, reference)
	}
}

// runUnpack runs the reconciler until ctx ends.
func (p *process) runUnpack(ctx context.Context) error {
	config := unpack.Config{
		Bundles: p.loopback, Kube: p.kube, Direct: image.New(), AllowDirect: p.Unpack.AllowDirect, Scratch: p.scratch(),
		Image: p.Unpack.Image, Key: p.identity.attemptKey, Workers: p.Unpack.Workers,
		Backoff: unpack.Backoff{Base: p.Unpack.BackoffBase, Cap: p.Unpack.BackoffCap, Slow: p.Unpack.BackoffSlow, ImageGrace: p.Unpack.ImageGrace},
	}
	if p.endpoint != nil {
		config.Server = p.endpoint.get
	}
	r, err := unpack.New(config)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// podIdentity names the holder of the Lease. The pod of a StatefulSet keeps its name, so that it need
// not wait for its own Lease after a restart.
func podIdentity() string {
	if name := os.Getenv("POD_NAME"); name != "" {
		return name
	}
	host, err := os.Hostname()
	if err != nil {
		return "rukpak-apiserver"
	}
	return host
}

// noPluginConfig configures no admission plugin.
type noPluginConfig struct{}

func (noPluginConfig) ConfigFor(string) (io.Reader, error) { return nil, nil }
