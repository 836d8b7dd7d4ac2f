// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundleclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/generated/clientset/versioned"
	typed "rukpak.io/apiserver/pkg/generated/clientset/versioned/typed/rukpak/v1alpha1"
)

const (
	// apiServicePath is where kube-apiserver says which Service serves our API, and what its certificate is signed with.
	apiServicePath = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1." + v1alpha1.GroupName
	// lookTime bounds one look at the APIService, and the first request to the Service.
	lookTime = 5 * time.Second
	// directLook is how long a direct way is taken until it is looked at again: far below the 30 days for which both the old
	// and the next authority are trusted. detourLook is how long the way through kube-apiserver is taken at first; it doubles
	// up to directLook, since a look may take lookTime.
	directLook = 10 * time.Minute
	detourLook = time.Minute
)

// RouteOptions say how a Route goes straight to the server.
type RouteOptions struct {
	// TokenFile holds the token that is shown to the server itself, as a projected volume with the audience rukpak.io
	// makes one, which is of no use anywhere else. Empty means the credentials of the config.
	TokenFile string
	// Address, HOST:PORT, is where the Service is reached, for clusters without DNS: its cluster IP. Empty means its name. No
	// proxy is used for it.
	Address string
}

// Route leads to the API straight to its Service where that can be reached, and through kube-apiserver elsewhere. With it
// large contents do not pass through kube-apiserver, and are not cut after a minute. It takes get on the APIService
// v1alpha1.rukpak.io (the ClusterRole rukpak-direct), which names the Service and its authority; where that is not allowed, where the
// Service does not answer, or does not take the credentials, all goes through kube-apiserver. It looks again every
// few minutes, so that it notices when an authority is replaced.
type Route struct {
	config *rest.Config
	opts   RouteOptions
	around typed.RukpakV1alpha1Interface // through kube-apiserver

	mu       sync.Mutex
	direct   typed.RukpakV1alpha1Interface // nil where there is none
	endpoint endpoint                      // of direct
	wait     backoff                       // until the next look
	problem  error                         // why there is no direct way
}

// NewRoute returns a Route that uses the credentials of a config for both ways. It looks for the direct way when it is first used.
func NewRoute(config *rest.Config, opts RouteOptions) (*Route, error) {
	clients, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Route{config: config, opts: opts, around: clients.RukpakV1alpha1(), wait: backoff{min: detourLook, max: directLook}}, nil
}

// Bundles is for the bundles of a namespace, by the way that is the best now.
func (r *Route) Bundles(namespace string) typed.BundleInterface {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.wait.pending() {
		// There is no context to be had here; the look has a bound of its own.
		ctx, cancel := context.WithTimeout(context.Background(), lookTime)
		defer cancel()
		r.look(ctx)
	}
	if r.direct != nil {
		return r.direct.Bundles(namespace)
	}
	return r.around.Bundles(namespace)
}

// Direct reports whether requests go straight to the server, as of the last look, and if not, why. It is nil if they do.
func (r *Route) Direct() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.direct == nil && r.problem == nil {
		return errors.New("nobody has looked yet")
	}
	return r.problem
}

// look finds the direct way.
func (r *Route) look(ctx context.Context) {
	direct, at, err := r.find(ctx)
	if (err == nil) != (r.problem == nil) || r.wait.until.IsZero() {
		klog.FromContext(ctx).V(2).Info("Chose the way to bundles", "direct", err == nil, "address", at.address(), "err", err)
	}
	r.direct, r.endpoint, r.problem = direct, at, err
	if err != nil {
		r.wait.next()
		return
	}
	r.wait.last, r.wait.until = 0, time.Now().Add(jitter(directLook))
}

func (r *Route) find(ctx context.Context) (typed.RukpakV1alpha1Interface, endpoint, error) {
	at, err := r.ask(ctx)
	if err != nil {
		return nil, endpoint{}, err
	}
	if r.direct != nil && at.equal(r.endpoint) && probe(ctx, r.direct) == nil {
		// The same transport goes on.
		return r.direct, at, nil
	}
	config := r.straight(at)
	clients, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, at, err
	}
	direct := clients.RukpakV1alpha1()
	if err := probe(ctx, direct); err != nil {
		return nil, at, fmt.Errorf("straight to %s%s: %w", at.address(), through(config), err)
	}
	return direct, at, nil
}

// through names the proxy that requests go through, and is empty where they go through none.
func through(config *rest.Config) string {
	proxy := config.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	request, err := http.NewRequest(http.MethodGet, config.Host, nil)
	if err != nil {
		return ""
	}
	if at, err := proxy(request); err == nil && at != nil {
		return " through the proxy " + at.Host + ""
	}
	return ""
}

// probe makes a request that whoever has a credential may make.
func probe(ctx context.Context, way typed.RukpakV1alpha1Interface) error {
	client := way.RESTClient()
	return client.Get().AbsPath("/apis", v1alpha1.SchemeGroupVersion.Group, v1alpha1.SchemeGroupVersion.Version).MaxRetries(0).Do(ctx).Error()
}

// endpoint is where an API is served.
type endpoint struct {
	host string
	port int
	ca   []byte
}

func (e endpoint) address() string { return net.JoinHostPort(e.host, strconv.Itoa(e.port)) }

func (e endpoint) equal(o endpoint) bool {
	return e.host == o.host && e.port == o.port && bytes.Equal(e.ca, o.ca)
}

// ask reads the APIService.
func (r *Route) ask(ctx context.Context) (endpoint, error) {
	client := r.around.RESTClient()
	result := client.Get().AbsPath(apiServicePath).SetHeader("Accept", "application/json").MaxRetries(0).Do(ctx)
	// Unlike DoRaw, and Raw, it has the message of the Status that came.
	if err := result.Error(); err != nil {
		return endpoint{}, fmt.Errorf("read the APIService v1alpha1.%s: %w", v1alpha1.GroupName, err)
	}
	raw, err := result.Raw()
	if err != nil {
		return endpoint{}, err
	}
	return endpointOf(raw)
}

// endpointOf takes the Service out of an APIService.
func endpointOf(raw []byte) (endpoint, error) {
	var apiService struct {
		Spec struct {
			Service *struct {
				Namespace, Name string
				Port            *int
			}
			CABundle []byte
		}
	}
	if err := json.Unmarshal(raw, &apiService); err != nil {
		return endpoint{}, fmt.Errorf("APIService v1alpha1.%s: %w", v1alpha1.GroupName, err)
	}
	service := apiService.Spec.Service
	switch {
	case service == nil:
		return endpoint{}, fmt.Errorf("the APIService v1alpha1.%s names no Service", v1alpha1.GroupName)
	case len(apiService.Spec.CABundle) == 0:
		return endpoint{}, fmt.Errorf("the APIService v1alpha1.%s has no caBundle", v1alpha1.GroupName)
	}
	at := endpoint{host: service.Name + "." + service.Namespace + ".svc", port: 443, ca: apiService.Spec.CABundle}
	if service.Port != nil {
		at.port = *service.Port
	}
	return at, nil
}

// straight is the config for an endpoint.
func (r *Route) straight(at endpoint) *rest.Config {
	config := rest.CopyConfig(r.config)
	config.Host, config.APIPath = "https://"+at.address(), ""
	tls := &config.TLSClientConfig
	tls.Insecure, tls.ServerName, tls.CAFile, tls.CAData = false, at.host, "", at.ca
	if r.opts.Address != "" {
		dial := config.Dial
		if dial == nil {
			dial = (&net.Dialer{Timeout: lookTime}).DialContext
		}
		config.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dial(ctx, network, r.opts.Address)
		}
		// What a proxy is sent, its credentials among them, is nothing for the Service.
		config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	}
	if r.opts.TokenFile != "" {
		config.BearerToken, config.BearerTokenFile = "", r.opts.TokenFile
		config.Username, config.Password, config.AuthProvider, config.ExecProvider = "", "", nil, nil
		tls.CertFile, tls.KeyFile, tls.CertData, tls.KeyData = "", "", nil, nil
	}
	return config
}
