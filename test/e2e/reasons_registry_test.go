// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/pki"
)

// registryCauses are those of which a registry tells the node.
func registryCauses() []cause {
	return []cause{
		{name: "image not found", reason: v1alpha1.ReasonImageNotFound, words: []string{"the registry has no such image", "not found"}, arrange: imageNotFound},
		{name: "registry unreachable", reason: v1alpha1.ReasonRegistryUnreachable, words: []string{"connection refused"}, arrange: registryUnreachable},
		{name: "registry out of order", reason: v1alpha1.ReasonRegistryUnreachable, words: []string{"503 Service Unavailable"}, arrange: answering(http.StatusServiceUnavailable, "")},
		{name: "rate limited", reason: v1alpha1.ReasonRateLimited, words: []string{"no more requests for now", "429 Too Many Requests"}, arrange: answering(http.StatusTooManyRequests, "")},
		{name: "registry not trusted", reason: v1alpha1.ReasonRegistryNotTrusted, words: []string{"x509: certificate signed by unknown authority"}, arrange: registryNotTrusted},
		{name: "no credentials", reason: v1alpha1.ReasonImagePullUnauthorized, words: []string{"wants other credentials", "no basic auth credentials"}, arrange: answering(http.StatusUnauthorized, `Basic realm="e2e"`)},
		{name: "wrong credentials", reason: v1alpha1.ReasonImagePullUnauthorized, words: []string{"wants other credentials"}, arrange: wrongCredentials},
		{name: "pull secret missing", reason: v1alpha1.ReasonPullSecretMissing, words: []string{"wants other credentials", "regcred"}, arrange: pullSecretMissing},
		{name: "other platform", reason: v1alpha1.ReasonPlatformNotSupported, words: []string{"not have the image for the node's platform", "no match for platform in manifest"}, arrange: otherPlatform},
	}
}

// gate is a registry of a test's own. As long as it has another answer, it gives that one to all.
type gate struct {
	host   string
	answer atomic.Pointer[http.HandlerFunc]
	next   http.Handler
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if answer := g.answer.Load(); answer != nil {
		(*answer)(w, r)
		return
	}
	g.next.ServeHTTP(w, r)
}

func (g *gate) close(answer http.HandlerFunc) { g.answer.Store(&answer) }
func (g *gate) open()                         { g.answer.Store(nil) }

// gate makes a registry that is open, and speaks TLS where it is given a certificate.
func (s *scope) gate(address string, certificate *tls.Certificate) *gate {
	s.Helper()
	listener, err := net.Listen("tcp", address)
	s.must(err)
	silent := log.New(io.Discard, "", 0)
	g := &gate{host: listener.Addr().String(), next: registry.New(registry.Logger(silent))}
	server := &http.Server{Handler: g, ErrorLog: silent, ReadHeaderTimeout: time.Minute}
	if certificate != nil {
		server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*certificate}}
		listener = tls.NewListener(listener, server.TLSConfig)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	s.Cleanup(func() {
		s.must(server.Close())
		<-ended
	})
	return g
}

// patient is a class that goes on trying, however long the test may take.
func (s *scope) patient(change func(*v1alpha1.ProvisionerClass)) string {
	s.Helper()
	return s.class("class", v1alpha1.ProvisionerPlain, func(c *v1alpha1.ProvisionerClass) {
		if change != nil {
			change(c)
		}
		if c.Unpack == nil {
			c.Unpack = &v1alpha1.UnpackPolicy{}
		}
		c.Unpack.BackoffLimit = ptr.To[int32](100)
	})
}

func imageNotFound(p *plight) func() {
	reference := p.reference(nodeRegistry, "nowhere")
	p.expect(reference)
	p.bundle("app", p.patient(nil), reference)
	return func() { p.push("nowhere", p.tree) }
}

func registryUnreachable(p *plight) func() {
	address := p.closedAddress()
	p.expect(address)
	p.bundle("app", p.patient(nil), p.reference(address, "v1"))
	return func() {
		g := p.gate(address, nil)
		p.pushImage(g.host, "v1", p.image(p.tree.archive(), v1.Config{}))
	}
}

// answering lets a registry answer nothing but a status code, with a challenge where there is one.
func answering(code int, challenge string) func(*plight) func() {
	return func(p *plight) func() {
		g := p.gate("127.0.0.1:0", nil)
		digest, _ := p.pushImage(g.host, "v1", p.image(p.tree.archive(), v1.Config{}))
		g.close(func(w http.ResponseWriter, _ *http.Request) {
			if challenge != "" {
				w.Header().Set("WWW-Authenticate", challenge)
			}
			w.WriteHeader(code)
		})
		p.bundle("app", p.patient(nil), digest)
		return g.open
	}
}

// registryNotTrusted serves a registry with a certificate of an authority that the node learns of later.
func registryNotTrusted(p *plight) func() {
	address := p.nodeAddress()
	authority, err := pki.NewAuthority("e2e", time.Hour)
	p.must(err)
	certificate, key, err := authority.Serving(nil, []net.IP{net.ParseIP(address)}, time.Hour)
	p.must(err)
	pair, err := tls.X509KeyPair(certificate, key)
	p.must(err)
	g := p.gate(net.JoinHostPort(address, "0"), &pair)
	p.bundle("app", p.patient(nil), p.reference(g.host, "v1"))
	return func() {
		ref, err := name.NewTag(p.reference(g.host, "v1"))
		p.must(err)
		roots := x509.NewCertPool()
		roots.AddCert(authority.Certificate())
		transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}}
		defer transport.CloseIdleConnections()
		p.must(remote.Write(ref, p.image(p.tree.archive(), v1.Config{}), remote.WithContext(p.ctx), remote.WithTransport(transport)))
		p.trust(g.host, authority.CertPEM)
	}
}

// user and password are what the registries below ask for.
const user, password = "e2e", "not a secret"

// guarded is a registry that wants credentials, with the tree as an image.
func (p *plight) guarded() (host, digest string) {
	p.Helper()
	g := p.gate("127.0.0.1:0", nil)
	digest, _ = p.pushImage(g.host, "v1", p.image(p.tree.archive(), v1.Config{}))
	g.close(func(w http.ResponseWriter, r *http.Request) {
		if u, secret, ok := r.BasicAuth(); ok && u == user && secret == password {
			g.next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="e2e"`)
		w.WriteHeader(http.StatusUnauthorized)
	})
	return g.host, digest
}

// credentials is a pull secret for a registry.
func (s *scope) credentials(host, password string) *corev1.Secret {
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "regcred"}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, host, auth)},
	}
}

func withPullSecret(b *v1alpha1.Bundle) {
	b.Spec.ImagePullSecrets = []v1alpha1.LocalObjectReference{{Name: "regcred"}}
}

func pullSecretMissing(p *plight) func() {
	host, digest := p.guarded()
	p.bundle("app", p.patient(nil), digest, withPullSecret)
	return func() {
		_, err := p.kube.CoreV1().Secrets(p.ns).Create(p.ctx, p.credentials(host, password), metav1.CreateOptions{})
		p.must(err)
	}
}

func wrongCredentials(p *plight) func() {
	host, digest := p.guarded()
	_, err := p.kube.CoreV1().Secrets(p.ns).Create(p.ctx, p.credentials(host, "a guess"), metav1.CreateOptions{})
	p.must(err)
	p.bundle("app", p.patient(nil), digest, withPullSecret)
	return func() {
		_, err := p.kube.CoreV1().Secrets(p.ns).Update(p.ctx, p.credentials(host, password), metav1.UpdateOptions{})
		p.must(err)
	}
}

// otherPlatform pushes an index that has no image for the node's architecture at first.
func otherPlatform(p *plight) func() {
	ref, err := name.NewTag(p.reference(nodeRegistry, "v1"))
	p.must(err)
	push := func(architectures ...string) {
		index := v1.ImageIndex(empty.Index)
		for _, architecture := range architectures {
			index = mutate.AppendManifests(index, mutate.IndexAddendum{
				Add:        p.image(p.tree.archive(), v1.Config{}),
				Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}},
			})
		}
		p.must(remote.WriteIndex(ref, index, remote.WithContext(p.ctx)))
	}
	push("s390x")
	p.bundle("app", p.patient(nil), ref.String())
	return func() { push("s390x", runtime.GOARCH) }
}
