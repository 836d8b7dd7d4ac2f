// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package bundleclient_test

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"rukpak.io/apiserver/pkg/bundleclient"
	"rukpak.io/apiserver/pkg/bundleclient/bundletest"
	"rukpak.io/apiserver/pkg/pki"
)

// serviceHost is the name of the Service in the tests.
const serviceHost = "bundles.system.svc"

// cluster is a kube-apiserver, which knows an APIService and passes the rest on, and a Service, each with an API behind.
type cluster struct {
	*bundletest.API
	around, service *httptest.Server
	authority       *pki.Authority
	apiService      string       // what kube-apiserver answers
	code            int          // with which code
	token           string       // what the Service takes
	dns             bool         // whether the name of the Service is known
	proxy           string       // what goes to other than kube-apiserver goes through
	direct          atomic.Int64 // requests that came to the Service
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{API: startAPI(t), code: http.StatusOK, token: "secret", dns: true}
	c.around = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if strings.HasPrefix(req.URL.Path, "/apis/apiregistration.k8s.io/") {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(c.code)
			fmt.Fprint(w, c.apiService)
			return
		}
		c.ServeHTTP(w, req)
	}))
	t.Cleanup(c.around.Close)
	var err error
	if c.authority, err = pki.NewAuthority("test", time.Hour); err != nil {
		t.Fatal(err)
	}
	certificate, key, err := c.authority.Serving([]string{serviceHost}, nil, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	c.service = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c.direct.Add(1)
		switch {
		case req.Header.Get("Authorization") != "Bearer "+c.token:
			bundletest.Refuse(w, http.StatusUnauthorized, "Unauthorized")
		case req.URL.Path == "/apis/rukpak.io/v1alpha1":
			fmt.Fprint(w, "{}")
		default:
			c.ServeHTTP(w, req)
		}
	}))
	c.service.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	c.service.StartTLS()
	t.Cleanup(c.service.Close)
	c.names(c.authority.CertPEM)
	return c
}

// names makes the APIService name the Service and an authority.
func (c *cluster) names(ca []byte) {
	c.apiService = fmt.Sprintf(`{"spec":{"service":{"namespace":"system","name":"bundles","port":443},"caBundle":%q}}`, base64.StdEncoding.EncodeToString(ca))
}

// config reaches both.
func (c *cluster) config() *rest.Config {
	proxy := func(request *http.Request) (*url.URL, error) {
		if c.proxy == "" || "http://"+request.URL.Host == c.around.URL {
			return nil, nil
		}
		return url.Parse(c.proxy)
	}
	return &rest.Config{Host: c.around.URL, BearerToken: "secret", Proxy: proxy, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		if address == serviceHost+":443" && !c.dns {
			return nil, &net.DNSError{Err: "no such host", Name: serviceHost, IsNotFound: true}
		}
		if address == serviceHost+":443" {
			address = c.service.Listener.Addr().String()
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
}

func TestRouteLeadsStraightWhereItCan(t *testing.T) {
	other, err := pki.NewAuthority("other", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change  func(t *testing.T, c *cluster, o *bundleclient.RouteOptions)
		problem string
	}{
		"all is well": {change: func(*testing.T, *cluster, *bundleclient.RouteOptions) {}},
		"a token of its own": {change: func(t *testing.T, c *cluster, o *bundleclient.RouteOptions) {
			c.token, o.TokenFile = "narrow", filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(o.TokenFile, []byte("narrow"), 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		"a cluster without DNS": {change: func(_ *testing.T, c *cluster, o *bundleclient.RouteOptions) {
			o.Address, c.dns = c.service.Listener.Addr().String(), false
		}},
		"an address, and a proxy for the rest": {change: func(_ *testing.T, c *cluster, o *bundleclient.RouteOptions) {
			o.Address, c.dns, c.proxy = c.service.Listener.Addr().String(), false, "http://user:password@127.0.0.1:1"
		}},
		"a proxy that does not let it pass": {problem: "straight to bundles.system.svc:443 through the proxy 127.0.0.1:1: ", change: func(_ *testing.T, c *cluster, _ *bundleclient.RouteOptions) {
			c.proxy = "http://user:password@127.0.0.1:1"
		}},
		"a name that nobody knows": {problem: "no such host", change: func(_ *testing.T, c *cluster, _ *bundleclient.RouteOptions) { c.dns = false }},
		"no grant": {problem: `read the APIService v1alpha1.rukpak.io: apiservices is forbidden: User "me" cannot get it`, change: func(_ *testing.T, c *cluster, _ *bundleclient.RouteOptions) {
			c.code, c.apiService = http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,
				"message":"apiservices is forbidden: User \"me\" cannot get it"}`
		}},
		"another authority": {problem: "certificate", change: func(_ *testing.T, c *cluster, _ *bundleclient.RouteOptions) { c.names(other.CertPEM) }},
		"no authority":      {problem: "no caBundle", change: func(_ *testing.T, c *cluster, _ *bundleclient.RouteOptions) { c.names(nil) }},
		"no Service": {problem: "names no Service", change: func(_ *testing.T, c *cluster, _ *bundleclient.RouteOptions) {
			c.apiService = `{"spec":{}}`
		}},
		"credentials that the server does not take": {problem: "Unauthorized", change: func(_ *testing.T, c *cluster, _ *bundleclient.RouteOptions) { c.token = "another" }},
		"a Service that nobody reaches":             {problem: "refused", change: func(_ *testing.T, c *cluster, _ *bundleclient.RouteOptions) { c.service.Close() }},
	} {
		t.Run(name, func(t *testing.T) {
			k, opts := startCluster(t), bundleclient.RouteOptions{}
			c.change(t, k, &opts)
			digest := k.Put("team/app", files("one", 3), true)
			route, err := bundleclient.NewRoute(k.config(), opts)
			if err != nil {
				t.Fatal(err)
			}
			got, err := bundleclient.New(route, bundleclient.Options{}).Open(t.Context(), "team", "app", bundleclient.OpenOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer got.Close()
			problem := ""
			if err := route.Direct(); err != nil {
				problem = err.Error()
			}
			if got.Digest != digest || (problem == "") != (c.problem == "") || !strings.Contains(problem, c.problem) {
				t.Errorf("%s, no direct way since %q", got.Digest, problem)
			}
			if straight := k.direct.Load() > 1; straight != (c.problem == "") {
				t.Errorf("%d requests came to the Service", k.direct.Load())
			}
		})
	}
}
