// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"

	"rukpak.io/apiserver/pkg/platform"
	"rukpak.io/apiserver/pkg/source/registrytest"
	"rukpak.io/apiserver/pkg/tarball"
)

// write puts a file into a folder of the test's own, or replaces it as a mounted Secret is.
func write(t *testing.T, file string, data []byte) {
	t.Helper()
	must(t, os.WriteFile(file+".new", data, 0o600))
	must(t, os.Rename(file+".new", file))
}

// pull does all that mode Direct does.
func pull(t *testing.T, p *Puller, reference string) error {
	t.Helper()
	resolved, err := p.Resolve(t.Context(), reference)
	if err == nil {
		_, err = p.Pack(t.Context(), resolved, platform.Platform{}, "", discard{}, tarball.Limits{}, t.TempDir())
	}
	return err
}

// TestPrivateRegistries goes through the credentials that there may be, with one Puller, whose
// files change: each change counts at once.
func TestPrivateRegistries(t *testing.T) {
	for name, options := range map[string]registrytest.Options{
		"basic":                  {},
		"tokens":                 {Tokens: true},
		"tokens that wear out":   {Tokens: true, TokenUses: 1},
		"basic, without TLS":     {PlainHTTP: true},
		"a layer is redirected":  {Wrap: redirectBlobs(t)},
		"tokens and redirection": {Tokens: true, Wrap: redirectBlobs(t)},
	} {
		t.Run(name, func(t *testing.T) {
			r := registrytest.Serve(t, options)
			r.Allow("puller", "right")
			digest := r.Push(t, "team/app:v1", imageOf(t, layerOf(t, file0644("a", "a")), layerOf(t, file0644("b", "b"))))
			tagged := r.Host + "/team/app:v1"
			folder := t.TempDir()
			credentials, authorities := filepath.Join(folder, "config.json"), filepath.Join(folder, "ca.crt")
			access := Access{CredentialsFile: credentials}
			if !options.PlainHTTP {
				write(t, authorities, r.Authority)
				access.AuthoritiesFile = authorities
			}
			p := NewWithAccess(access)
			for _, step := range []struct {
				name   string
				config []byte
				before func()
				want   error
				says   string
			}{
				{name: "missing", config: []byte(`{}`), want: ErrUnauthorized, says: "there are no credentials for " + r.Host},
				{name: "wrong", config: r.Config("puller", "wrong"), want: ErrUnauthorized, says: "with the credentials for " + r.Host},
				{name: "right", config: r.Config("puller", "right")},
				{name: "expired", before: func() { r.Forbid("puller") }, want: ErrUnauthorized, says: "with the credentials for " + r.Host},
				{name: "renewed", before: func() { r.Allow("puller", "new") }, config: r.Config("puller", "new")},
				{name: "of another registry", config: []byte(`{"auths":{"registry.example":{"auth":"cHVsbGVyOm5ldw=="}}}`), want: ErrUnauthorized, says: "no credentials"},
			} {
				if step.before != nil {
					step.before()
				}
				if step.config != nil {
					write(t, credentials, step.config)
				}
				for _, reference := range []string{digest, tagged} {
					err := pull(t, p, reference)
					if !errors.Is(err, step.want) || err != nil && step.want == nil {
						t.Errorf("%s: got %v, want %v", step.name, err, step.want)
					}
					if err != nil && !strings.Contains(err.Error(), step.says) {
						t.Errorf("%s: %q does not say %q", step.name, err, step.says)
					}
					if err != nil && (strings.Contains(err.Error(), "wrong") || strings.Contains(err.Error(), "new")) {
						t.Errorf("%s: %q tells the password", step.name, err)
					}
				}
			}
		})
	}
}

// redirectBlobs makes registries that have their layers elsewhere, as those in clouds do. The credentials stay behind.
func redirectBlobs(t *testing.T) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if auth := r.Header.Get("Authorization"); auth != "" {
				t.Errorf("the registry's credentials went elsewhere: %.10s…", auth)
			}
			next.ServeHTTP(w, r)
		}))
		t.Cleanup(elsewhere.Close)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
				http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusTemporaryRedirect)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

func TestAuthorityIsWanted(t *testing.T) {
	r := registrytest.Serve(t, registrytest.Options{})
	other := registrytest.Serve(t, registrytest.Options{})
	r.Allow("puller", "right")
	digest := r.Push(t, "app:v1", imageOf(t, layerOf(t, file0644("a", "a"))))
	file := filepath.Join(t.TempDir(), "ca.crt")
	config := file + ".json"
	write(t, config, r.Config("puller", "right"))
	p := NewWithAccess(Access{CredentialsFile: config, AuthoritiesFile: file})
	// One Puller, and a file that changes.
	for _, step := range []struct {
		name    string
		content []byte
		want    error
	}{
		{"of another", other.Authority, ErrNotTrusted},
		{"of this one and another", append(append([]byte(nil), other.Authority...), r.Authority...), nil},
		{"of another again", other.Authority, ErrNotTrusted},
		{"of none", []byte("nothing"), ErrAccess},
		{"of this one", r.Authority, nil},
	} {
		write(t, file, step.content)
		if err := pull(t, p, digest); !errors.Is(err, step.want) || err != nil && step.want == nil {
			t.Errorf("%s: got %v, want %v", step.name, err, step.want)
		}
	}
	must(t, os.Remove(file))
	if err := pull(t, p, digest); !errors.Is(err, ErrAccess) || !strings.Contains(err.Error(), file) {
		t.Errorf("no file: got %v", err)
	}
}

func TestAccessCheck(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "file")
	for name, test := range map[string]struct{ content, says string }{
		"nothing in it": {`{}`, ""},
		"a login":       {`{"auths":{"registry.example":{"username":"u","password":"p"}}}`, ""},
		"no JSON":       {`{"auths":{"registry.example":{"auth":"c2VjcmV0"`, "no config.json"},
		"no base64":     {`{"auths":{"registry.example":{"auth":"secret!"}}}`, "no config.json"},
		"a store":       {`{"auths":{},"credsStore":"desktop"}`, "credsStore"},
		"a helper":      {`{"credHelpers":{"registry.example":"ecr-login"}}`, "credHelpers"},
		"too large":     {strings.Repeat(" ", maxAccessFile+1), "bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			write(t, file, []byte(test.content))
			err := Access{CredentialsFile: file}.Check()
			if (err == nil) != (test.says == "") || err != nil && !(errors.Is(err, ErrAccess) && strings.Contains(err.Error(), test.says) && strings.Contains(err.Error(), file)) {
				t.Errorf("got %v, want %q", err, test.says)
			}
			if err != nil && (strings.Contains(err.Error(), "c2VjcmV0") || strings.Contains(err.Error(), "secret!")) {
				t.Errorf("%q tells the secret", err)
			}
		})
	}
	if err := (Access{CredentialsFile: file + "-gone"}).Check(); !errors.Is(err, ErrAccess) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no credentials: got %v", err)
	}
	write(t, file, []byte("nothing"))
	if err := (Access{AuthoritiesFile: file}).Check(); !errors.Is(err, ErrAccess) {
		t.Errorf("no authority: got %v", err)
	}
	must(t, Access{}.Check())
}

func TestWhichCredentialsAreUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.json")
	auth := func(user string) string { return base64.StdEncoding.EncodeToString([]byte(user + ":p")) }
	write(t, file, fmt.Appendf(nil, `{"auths":{
		"registry.example": {"auth": %q},
		"registry.example/team": {"auth": %q},
		"registry.example/team/app": {"auth": %q},
		"https://index.docker.io/v1/": {"auth": %q},
		"*.wild.example": {"auth": %q},
		"one.wild.example": {"auth": %q},
		"https://url.example:5000": {"auth": %q},
		"[::1]:5000": {"auth": %q}
	}}`, auth("host"), auth("team"), auth("app"), auth("hub"), auth("wild"), auth("one"), auth("url"), auth("six")))
	for repository, want := range map[string]string{
		"registry.example/other":         "host",
		"registry.example/teams/app":     "host",
		"registry.example/team/other":    "team",
		"registry.example/team/app":      "app",
		"registry.example/team/app/part": "app",
		"registry.example/team/apple":    "team",
		"registry.example:5000/team":     "",
		"evil-registry.example/team":     "",
		"library/nginx":                  "hub",
		"docker.io/library/nginx":        "hub",
		"two.wild.example/app":           "wild",
		"one.wild.example/app":           "one",
		"a.two.wild.example/app":         "",
		"wild.example/app":               "",
		"two.wild.example:5000/app":      "",
		"url.example:5000/app":           "url",
		"[::1]:5000/app":                 "six",
	} {
		ref, err := name.NewRepository(repository, name.WeakValidation)
		must(t, err)
		login, err := Access{CredentialsFile: file}.login(ref)
		must(t, err)
		got := ""
		if login != nil {
			got = login.Username
		}
		if got != want {
			t.Errorf("%s: got the credentials of %q, want %q", repository, got, want)
		}
	}
}

// TestPlainHTTPWhereItIsNamed speaks it with the registry and with nobody that it redirects to.
func TestPlainHTTPWhereItIsNamed(t *testing.T) {
	for _, test := range []struct {
		named, redirect string
		want            error
	}{
		{"registry.example", "", nil},
		{"registry.example:80", "", ErrUnreachable},
		{"other.example", "", ErrUnreachable},
		{"registry.example", "http://other.example/", errPlainHTTP},
	} {
		var spoken atomic.Int32
		p := NewWithAccess(Access{PlainHTTP: []string{test.named}})
		p.transport = through(func(r *http.Request) (*http.Response, error) {
			switch {
			case r.URL.Scheme != "http":
				return nil, errors.New("no TLS here")
			case test.redirect != "":
				return &http.Response{StatusCode: http.StatusFound, Request: r, Body: http.NoBody, Header: http.Header{"Location": {test.redirect}}}, nil
			}
			spoken.Add(1)
			return &http.Response{StatusCode: http.StatusOK, Request: r, Body: http.NoBody, Header: http.Header{"Docker-Content-Digest": {"sha256:" + strings.Repeat("0", 64)}}}, nil
		})
		_, err := p.Resolve(t.Context(), "registry.example/app:v1")
		if !errors.Is(err, test.want) || err != nil && test.want == nil || (spoken.Load() > 0) != (test.want == nil) {
			t.Errorf("%+v: got %v, spoken %d times", test, err, spoken.Load())
		}
	}
}

// TestAddressesThatAreNotConnectedTo asks the dialer, as the transport does.
func TestAddressesThatAreNotConnectedTo(t *testing.T) {
	open := httptest.NewTLSServer(http.NotFoundHandler())
	defer open.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(open.URL, "https://"), ":")
	for _, test := range []struct {
		registry, url string
		refused       bool
	}{
		{"127.0.0.1:" + port, "https://127.0.0.1:" + port, false},
		{"localhost:" + port, "https://127.0.0.1:" + port, false},
		// What a name leads to counts, unless the name is the reference's own.
		{"registry.example", "https://localhost:" + port, true},
		{"registry.example", "https://127.0.0.1:" + port, true},
		{"registry.example", "https://[::ffff:127.0.0.1]:" + port, true},
		{"registry.example", "https://169.254.169.254", true},
		{"169.254.169.254", "https://169.254.169.254", true},
		{"[fe80::1]:5000", "https://[fe80::1]:5000", true},
		{"[fd00:ec2::254]:5000", "https://[fd00:ec2::254]:5000", true},
		{"registry.example", "https://[fd20:ce::254]", true},
		{"registry.example", "https://100.100.100.200", true},
		{"registry.example", "https://0.0.0.0:" + port, true},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, test.url, nil)
		must(t, err)
		resp, err := guard{base: newTransport(nil), registry: test.registry}.RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		if got := errors.Is(err, errForbiddenAddress); got != test.refused {
			t.Errorf("%s for an image of %s: %v", test.url, test.registry, err)
		}
	}
}

// TestKeptConnections asks over a connection to loopback that the transport has kept from an image that is there.
func TestKeptConnections(t *testing.T) {
	connections := atomic.Int32{}
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	base := newTransport(roots)
	home := strings.TrimPrefix(server.URL, "https://")
	get := func(registry string) error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		must(t, err)
		resp, err := guard{base: base, registry: registry}.RoundTrip(req)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		return errors.Join(err, resp.Body.Close())
	}
	must(t, get(home))
	must(t, get(home))
	if n := connections.Load(); n != 1 {
		t.Fatalf("%d connections: none was kept, and the test tests nothing", n)
	}
	if err := get("registry.example"); !errors.Is(err, errForbiddenAddress) {
		t.Errorf("for an image of another registry: %v", err)
	}
}
