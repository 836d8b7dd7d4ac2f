// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

// Package registrytest serves private registries to tests: real ones, in this
// process, behind TLS with an authority of their own, which want to know who asks.
//
//	r := registrytest.Serve(t, registrytest.Options{Tokens: true})
//	r.Allow("puller", "secret")
//	reference := r.Push(t, "team/app:v1", image)
package registrytest

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"rukpak.io/apiserver/pkg/pki"
)

// owner may do everything, and is who pushes.
const owner = "owner"

// Options say what a registry is like.
type Options struct {
	// Address to listen at, HOST:PORT with an IP address; 127.0.0.1:0 by default.
	Address string
	// Tokens makes it speak the token protocol of the distribution project, instead
	// of taking a name and a password with each request (RFC 7617).
	Tokens bool
	// TokenUses is how many requests a token is good for; 0 means that tokens do not wear out.
	TokenUses int
	// PlainHTTP leaves TLS out.
	PlainHTTP bool
	// Wrap, if set, comes before the registry, behind the check of who asks.
	Wrap func(http.Handler) http.Handler
}

// Registry is a registry that is being served. It may be used by many goroutines at once.
type Registry struct {
	// Host is what references begin with.
	Host string
	// Authority is the certificate, in PEM, that the registry's descends from.
	Authority []byte

	options  Options
	content  http.Handler
	password string // of the owner

	mu     sync.Mutex
	users  map[string]string // passwords by name
	tokens map[string]*token
	// asked counts the requests for manifests and blobs, by who made them.
	asked map[string]int
}

// Serve serves an empty registry for as long as the test runs.
func Serve(t testing.TB, options Options) *Registry {
	t.Helper()
	listener, err := net.Listen("tcp", cmp.Or(options.Address, "127.0.0.1:0"))
	must(t, err)
	silent := log.New(io.Discard, "", 0)
	r := &Registry{
		Host: listener.Addr().String(), options: options, content: registry.New(registry.Logger(silent)),
		password: rand.Text(), users: map[string]string{}, tokens: map[string]*token{}, asked: map[string]int{},
	}
	r.users[owner] = r.password
	if options.Wrap != nil {
		r.content = options.Wrap(r.content)
	}
	if !options.PlainHTTP {
		listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{r.certify(t)}})
	}
	server := &http.Server{Handler: http.HandlerFunc(r.serve), ErrorLog: silent, ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Errorf("close the registry: %v", err)
		}
		<-ended
	})
	return r
}

// certify makes an authority and a certificate for the registry's address, and for localhost.
func (r *Registry) certify(t testing.TB) tls.Certificate {
	t.Helper()
	authority, err := pki.NewAuthority("registrytest", time.Hour)
	must(t, err)
	host, _, err := net.SplitHostPort(r.Host)
	must(t, err)
	certPEM, keyPEM, err := authority.Serving([]string{"localhost"}, []net.IP{net.ParseIP(host)}, time.Hour)
	must(t, err)
	certificate, err := tls.X509KeyPair(certPEM, keyPEM)
	must(t, err)
	r.Authority = authority.CertPEM
	return certificate
}

// Allow lets a user in, with a new password if there was one.
func (r *Registry) Allow(user, password string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users[user] = password
}

// Forbid makes a user's password, and the tokens that were given for it, void.
func (r *Registry) Forbid(user string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.users, user)
	for id, t := range r.tokens {
		if t.user == user {
			delete(r.tokens, id)
		}
	}
}

// Asked tells how many requests for manifests and blobs of a user were let through.
func (r *Registry) Asked(user string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked[user]
}

// Client trusts the registry's authority, and no other.
func (r *Registry) Client() *http.Transport {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.Authority)
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
}

// Config is a config.json with a user's credentials for the registry.
func (r *Registry) Config(user, password string) []byte {
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	data, err := json.Marshal(map[string]any{"auths": map[string]any{r.Host: map[string]string{"auth": auth}}})
	if err != nil {
		panic(err) // maps of strings can be encoded
	}
	return data
}

// Push puts an image into the registry, and returns the reference by digest.
func (r *Registry) Push(t testing.TB, tag string, image v1.Image) string {
	t.Helper()
	ref := r.tag(t, tag)
	must(t, remote.Write(ref, image, r.pushing(t)...))
	digest, err := image.Digest()
	must(t, err)
	return ref.Context().Digest(digest.String()).String()
}

// PushIndex does the same for an index.
func (r *Registry) PushIndex(t testing.TB, tag string, index v1.ImageIndex) string {
	t.Helper()
	ref := r.tag(t, tag)
	must(t, remote.WriteIndex(ref, index, r.pushing(t)...))
	digest, err := index.Digest()
	must(t, err)
	return ref.Context().Digest(digest.String()).String()
}

func (r *Registry) tag(t testing.TB, tag string) name.Tag {
	t.Helper()
	var options []name.Option
	if r.options.PlainHTTP {
		options = append(options, name.Insecure)
	}
	ref, err := name.NewTag(r.Host+"/"+tag, options...)
	must(t, err)
	return ref
}

func (r *Registry) pushing(t testing.TB) []remote.Option {
	client := r.Client()
	t.Cleanup(client.CloseIdleConnections)
	return []remote.Option{
		remote.WithAuth(&authn.Basic{Username: owner, Password: r.password}), remote.WithTransport(client), remote.WithContext(t.Context()),
	}
}

// knows tells whether a password is the user's.
func (r *Registry) knows(user, password string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	want, ok := r.users[user]
	return ok && bytes.Equal([]byte(want), []byte(password))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
