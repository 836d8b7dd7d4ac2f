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
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	eventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak"
	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/platform"
	"rukpak.io/apiserver/pkg/source/image"
	"rukpak.io/apiserver/pkg/unpack"
	"rukpak.io/apiserver/pkg/unpack/pod"
)

// identitySecret is the name of the Secret of what replicas have in common.
const identitySecret = "rukpak-apiserver-pki"

func (o *Options) pkiDir() string { return filepath.Join(o.DataDir, "pki") }

// clusterConfig is how the server reaches its cluster.
func (o *Options) clusterConfig() (*rest.Config, error) {
	if path := o.Recommended.CoreAPI.CoreAPIKubeconfigPath; path != "" {
		return clientcmd.BuildConfigFromFlags("", path)
	}
	return rest.InClusterConfig()
}

// What the server may ask of the cluster in a second, and in a row: it makes some pods in a second at most, and looks at those that
// have something to say. Fair shares are what kube-apiserver's flow control is for.
const (
	clusterQPS   = 100
	clusterBurst = 200
)

// joinCluster makes the clients of the cluster.
func (p *process) joinCluster() error {
	config, err := p.clusterConfig()
	if err != nil {
		return fmt.Errorf("find the cluster: %w", err)
	}
	config.QPS, config.Burst = clusterQPS, clusterBurst
	if p.events, err = eventsv1.NewForConfig(config); err != nil {
		return fmt.Errorf("make the client for events: %w", err)
	}
	if p.kube, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("make the client of the cluster: %w", err)
	}
	p.endpoint = &endpoint{client: p.kube, service: p.ServiceName, namespace: p.Namespace, ca: p.certificates.bundle}
	return p.joinAggregation(config)
}

// endpoint is where unpack pods send content: the cluster IP of the server's Service, so that pods need no DNS.
type endpoint struct {
	client             kubernetes.Interface
	service, namespace string
	// ca returns what pods trust, which changes in time; empty if it is not known.
	ca func() []byte

	reads singleflight.Group // so that all who want it wait for one answer
	mu    sync.Mutex         // of what follows
	known *pod.Endpoint      // as it was read last
	again time.Time          // when it is read again
}

const (
	endpointTimeout = 5 * time.Second
	// endpointAge is how long an endpoint is good for. The address of a Service never changes, but one that is made anew has another.
	endpointAge = time.Minute
	// endpointPause is how long it is not asked for again after it could not be read.
	endpointPause = 5 * time.Second
)

// get returns the endpoint, or an empty one where the Service is not there or never could be read. What was read last is good
// for as long as the cluster gives no answer.
func (e *endpoint) get() pod.Endpoint {
	ca := e.ca()
	if len(ca) == 0 {
		klog.Background().Error(nil, "Cannot find out what unpack pods are to trust: the APIService has no caBundle, and there is no --tls-ca-file")
		return pod.Endpoint{}
	}
	known, again := e.last()
	if !time.Now().Before(again) {
		_, _, _ = e.reads.Do("", func() (any, error) { e.read(); return nil, nil })
		known, _ = e.last()
	}
	if known == nil {
		return pod.Endpoint{}
	}
	return pod.Endpoint{URL: known.URL, ServerName: known.ServerName, CA: ca}
}

func (e *endpoint) last() (known *pod.Endpoint, again time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.known, e.again
}

// read reads the endpoint anew, unless another has since.
func (e *endpoint) read() {
	if _, again := e.last(); time.Now().Before(again) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), endpointTimeout)
	defer cancel()
	found, err := e.find(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		klog.Background().Error(err, "Cannot find out where unpack pods send content")
		if apierrors.IsNotFound(err) {
			e.known = nil
		}
		e.again = time.Now().Add(endpointPause)
		return
	}
	if e.known != nil && e.known.URL != found.URL {
		klog.Background().Info("Unpack pods send content elsewhere from now on", "before", e.known.URL, "now", found.URL)
	}
	e.known, e.again = found, time.Now().Add(endpointAge)
}

// find reads where pods reach the Service.
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
		if v1alpha1.Digested(reference) {
			return reference, nil
		}
		return waitResolved(ctx, p.kube, b.Namespace, b.Status.Unpack.PodName, reference)
	}
}

// runUnpack runs the reconciler until ctx ends.
func (p *process) runUnpack(ctx context.Context) error {
	config := unpack.Config{
		Room:    p.server.Content.Room,
		Tracer:  p.tracer(),
		Stages:  p.stages,
		Bundles: p.loopback, Kube: p.kube, Direct: image.NewWithAccess(p.Direct.access()), AllowDirect: p.Unpack.AllowDirect, Scratch: p.scratch(),
		Image: p.Unpack.Image, Key: p.certificates.follower.Identity().AttemptKey, Workers: p.Unpack.Workers, Limits: p.Unpack.limits(),
		Pulls: unpack.PullRate{Burst: p.Unpack.PullBurst, PerSecond: p.Unpack.PullQPS}, Events: p.events,
		Backoff: unpack.Backoff{Base: p.Unpack.BackoffBase, Cap: p.Unpack.BackoffCap, Slow: p.Unpack.BackoffSlow, ImageGrace: p.Unpack.ImageGrace},
	}
	if p.endpoint != nil {
		config.Server = p.endpoint.get
	}
	var err error
	if config.Platform, err = platform.Parse(p.Unpack.Platform); err != nil {
		return err
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
